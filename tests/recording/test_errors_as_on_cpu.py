"""A mistake raises at the call what it raises on CPU: the same class with the same text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

# Each makes its tensors on the device `d` and is refused.
MISTAKES: dict[str, Callable[[str], object]] = {
    "add of shapes": lambda d: torch.ones(2, device=d) + torch.ones(3, device=d),
    "add_ of a broadcast": lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
    "add_ to an expanded": lambda d: torch.ones(3, device=d).expand(2, 3).add_(1),
    "add_ to a leaf": lambda d: torch.ones(3, device=d, requires_grad=True).add_(1),
    "add_ float to int": lambda d: torch.ones(3, dtype=torch.int64, device=d).add_(1.5),
    "add_ of overlapping": lambda d: _overlapping(torch.ones(4, device=d)),
    "as_strided out of storage": lambda d: torch.ones(3, device=d).as_strided((2, 2), (2, 2)),
    "batch_norm of one value": lambda d: F.batch_norm(
        torch.ones(1, 3, device=d), None, None, training=True
    ),
    "bmm of vectors": lambda d: torch.bmm(torch.ones(3, device=d), torch.ones(3, device=d)),
    "cat of shapes": lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
    "cat of nothing": lambda d: torch.cat([]),
    "conv2d of channels": lambda d: F.conv2d(
        torch.ones(1, 2, 3, 3, device=d), torch.ones(1, 3, 2, 2, device=d)
    ),
    "conv2d of a large kernel": lambda d: F.conv2d(
        torch.ones(1, 1, 2, 2, device=d), torch.ones(1, 1, 5, 5, device=d)
    ),
    "copy_ of a shape": lambda d: torch.ones(3, device=d).copy_(torch.ones(2)),
    "copy_ on the device": lambda d: torch.ones(3, device=d).copy_(torch.ones(2, device=d)),
    "copy_ of overlapping": lambda d: _copied_over_itself(torch.ones(4, device=d)),
    "cross_entropy of a batch": lambda d: F.cross_entropy(
        torch.ones(2, 3, device=d), torch.zeros(4, dtype=torch.int64, device=d)
    ),
    "dropout of 2": lambda d: F.dropout(torch.ones(2, device=d), 2.0),
    "embedding of floats": lambda d: F.embedding(
        torch.ones(2, device=d), torch.ones(3, 2, device=d)
    ),
    "empty of -1": lambda d: torch.empty(-1, device=d),
    "expand of a size": lambda d: torch.ones(2, device=d).expand(3),
    "gather of float indices": lambda d: torch.gather(
        torch.ones(3, 3, device=d), 0, torch.zeros(2, 2, device=d)
    ),
    "index out of range": lambda d: torch.ones(3, device=d)[5],
    "index by too many": lambda d: torch.ones(3, device=d)[0, 0],
    "index by floats": lambda d: torch.ones(3, device=d)[torch.ones(2, device=d)],
    "index by a short mask": lambda d: torch.ones(3, device=d)[
        torch.tensor([True, False], device=d)
    ],
    "item of two": lambda d: torch.ones(2, device=d).item(),
    "bool of two": lambda d: bool(torch.ones(2, device=d)),
    "layer_norm of a shape": lambda d: F.layer_norm(torch.ones(2, 3, device=d), (4,)),
    "linear of sizes": lambda d: F.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "masked_fill by floats": lambda d: torch.ones(3, device=d).masked_fill(
        torch.ones(3, device=d), 0
    ),
    "matmul of sizes": lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d),
    "matmul of dtypes": lambda d: (
        torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d)
    ),
    "max of nothing": lambda d: torch.ones(0, device=d).max(),
    "narrow past the end": lambda d: torch.ones(3, device=d).narrow(0, 2, 2),
    "negation of bools": lambda d: -torch.ones(3, dtype=torch.bool, device=d),
    "nll_loss of float targets": lambda d: F.nll_loss(
        torch.ones(2, 3, device=d), torch.ones(2, device=d)
    ),
    "permute twice the same": lambda d: torch.ones(2, 2, device=d).permute(0, 0),
    "pool of a large kernel": lambda d: F.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 5),
    "requires_grad of ints": lambda d: torch.ones(2, dtype=torch.int64, device=d).requires_grad_(),
    "reshape of a size": lambda d: torch.ones(2, 2, device=d).reshape(3),
    "scatter of dtypes": lambda d: torch.zeros(3, device=d).scatter(
        0, torch.zeros(2, dtype=torch.int64, device=d), torch.ones(2, dtype=torch.int64, device=d)
    ),
    "softmax over dim 3": lambda d: torch.zeros(2, 2, device=d).softmax(3),
    "split of sizes": lambda d: torch.ones(5, device=d).split([2, 2]),
    "squeeze over dim 4": lambda d: torch.ones(5, device=d).squeeze(4),
    "stack of shapes": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "subtraction of bools": lambda d: (
        torch.ones(3, dtype=torch.bool, device=d) - torch.ones(3, dtype=torch.bool, device=d)
    ),
    "sum over dim 4": lambda d: torch.ones(3, device=d).sum(dim=4),
    "topk of too many": lambda d: torch.ones(3, device=d).topk(5),
    "view of a size": lambda d: torch.ones(3, device=d).view(2, 2),
    "view of a transpose": lambda d: torch.ones(2, 3, device=d).t().view(-1),
    "where of shapes": lambda d: torch.where(
        torch.ones(2, dtype=torch.bool, device=d), torch.ones(3, device=d), torch.ones(2, device=d)
    ),
    "backward of a vector": lambda d: torch.ones(3, device=d, requires_grad=True).mul(2).backward(),
    "backward twice": lambda d: _backward_twice(torch.ones(3, device=d, requires_grad=True)),
    "backward without a graph": lambda d: torch.ones((), device=d).backward(),
}


def _overlapping(x: torch.Tensor) -> None:
    x[1:].add_(x[:-1])


def _copied_over_itself(x: torch.Tensor) -> None:
    x[1:].copy_(x[:-1])


def _backward_twice(x: torch.Tensor) -> None:
    y = x.exp().sum()
    y.backward()
    y.backward()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_raises_what_it_raises_on_cpu(mistake: str) -> None:
    assert refusal(mistake, "pjrt") == refusal(mistake, "cpu")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_leaves_nothing_behind(mistake: str) -> None:
    x = torch.ones(3, device="pjrt") + 1

    refusal(mistake, "pjrt")

    assert (x * 2).tolist() == [4, 4, 4]


def refusal(mistake: str, device: str) -> tuple[type[Exception], str]:
    """The class and the first line of what the mistake raises. A later line may name PyTorch's sources."""
    with pytest.raises(Exception) as caught:
        MISTAKES[mistake](device)
    return caught.type, str(caught.value).splitlines()[0].replace("pjrt:0", "cpu")


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        _ = torch.ones(3, device="pjrt") + torch.ones(3)


def test_0d_tensor_of_the_cpu_is_welcome() -> None:
    assert (torch.ones(3, device="pjrt") + torch.tensor(2.0)).tolist() == [3, 3, 3]


def test_numpy_of_a_tensor_on_the_device_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"can't convert pjrt:0 device type tensor to numpy"):
        torch.ones(2, device="pjrt").numpy()
