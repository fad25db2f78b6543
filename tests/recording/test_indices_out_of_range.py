"""An index out of range is PyTorch's error: at the call, or, if only the device knows, at the next read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import torch_pjrt
from as_on_cpu import outcome
from kept_tensors import kept_by_checks
from torch_pjrt.observe.counters import counters

Tensor = torch.Tensor
Make = Callable[..., Tensor]

# What is done with a 3x4 tensor `x`; `i(...)` makes a tensor of indices.
CALLS: dict[str, Callable[[Tensor, Make], Tensor]] = {
    "index": lambda x, i: x[i([0, 5])],
    "index from the end": lambda x, i: x[i([-4, 0])],
    "index of the second": lambda x, i: x[i([0]), i([[1], [7]])],
    "index of a later dim": lambda x, i: x[:, i([9])],
    "index of the last dim": lambda x, i: x[..., i([1, 4])],
    "index after a mask": lambda x, i: x[x[:, 0] > 3, i([4, 0])],
    "index put": lambda x, i: x.index_put((i([3]),), x.sum()),
    "setitem": lambda x, i: x.__setitem__(i([3]), 1.0) or x,
    "gather": lambda x, i: x.gather(1, i([[4]])),
    "gather below zero": lambda x, i: x.gather(-1, i([[-1]])),
    "scatter of a number": lambda x, i: x.scatter(0, i([[3]]), 1.0),
    "scatter": lambda x, i: x.scatter(1, i([[0, 9]]), x),
    "scatter_": lambda x, i: x.scatter_(1, i([[0, 9]]), x.clone()),
    "scatter_add": lambda x, i: x.scatter_add(0, i([[-1, 0]]), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i([[9]]), x, "amax"),
    "index_select": lambda x, i: x.index_select(1, i([0, 4])),
    "index_select of rows": lambda x, i: x.index_select(0, i([3])),
    "index_select of a vector": lambda x, i: x[0].index_select(0, i([-1])),
    "index_add": lambda x, i: x.index_add(0, i([3]), x[:1]),
    "index_add to a vector": lambda x, i: x[0].index_add(0, i([9]), x[0, :1]),
    "index_copy": lambda x, i: x.index_copy(0, i([-1]), x[:1]),
    "index_fill": lambda x, i: x.index_fill(1, i([-5]), 1.0),
    "index_reduce": lambda x, i: x.index_reduce(0, i([9]), x[:1], "amax"),
    "take": lambda x, i: x.take(i([12])),
    "take from the end": lambda x, i: x.take(i([-13])),
    "put": lambda x, i: x.put(i([99]), x[0, :1]),
    "embedding": lambda x, i: F.embedding(i([[0, 3]]), x),
    "embedding below zero": lambda x, i: F.embedding(i([-1]), x),
    "embedding_bag of doubles": lambda x, i: F.embedding_bag(i([0, -1]), x.double(), i([0, 1])),
    "embedding_bag ignoring": lambda x, i: F.embedding_bag(i([0, 9]), x, i([0]), padding_idx=1),
    "nll_loss": lambda x, i: F.nll_loss(x, i([0, 4, 1])),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i([0, -1, 4]), weight=x[0]),
    "cross_entropy ignoring": lambda x, i: F.cross_entropy(x, i([-7, 4, -7]), ignore_index=-7),
    "nll_loss of an image": lambda x, i: F.nll_loss(x[None, :, :, None], i([[[0], [1], [3], [2]]])),
}
# What the host knows of all elements says nothing of these: it would have to read them.
BY_PARTS: dict[str, Callable[[Tensor, Make], Tensor]] = {
    "index by a view": lambda x, i: x[i([[0, 1], [9, 0]])[1]],
    "embedding by a view": lambda x, i: F.embedding(i([0, 5, 9])[:2], x),
    "cross_entropy ignoring some": lambda x, i: F.cross_entropy(x, i([-100, 1, 2, 9])[1:]),
    "cross_entropy ignoring the least": lambda x, i: F.nll_loss(x, i([-100, 1, -7, 2])[:3]),
}
INSIDE: dict[str, Callable[[Tensor, Make], Tensor]] = {
    "index": lambda x, i: x[i([-3, 2])],
    "index by a view of more": lambda x, i: x[i([0, 2, 9])[:2]],
    "gather": lambda x, i: x.gather(1, i([[3, 0]])),
    "index_fill": lambda x, i: x.index_fill(1, i([-4]), 1.0),
    "embedding": lambda x, i: F.embedding(i([2, 0]), x),
    "take": lambda x, i: x.take(i([-12, 11])),
    "cross_entropy ignoring": lambda x, i: F.nll_loss(x, i([-100, 3, -100])),
    "embedding_bag": lambda x, i: F.embedding_bag(i([0, 2, 1]), x, i([0, 1, 3])),
    "embedding_bag of maxima": lambda x, i: F.embedding_bag(i([0, 2]), x, i([0, 1]), mode="max"),
    "division": lambda x, i: x.long() // i([-1, 2, 3, 1]),
    "division by a part": lambda x, i: x.long() // i([0, 2, 3, 1, 1])[1:],
    "nothing": lambda x, i: x[i([])],
}


def matrix(device: str) -> Tensor:
    return torch.arange(12.0).reshape(3, 4).clone().to(device)


def from_host(device: str) -> Make:
    return lambda positions: torch.tensor(positions, dtype=torch.int64, device=device)


def computed(device: str) -> Make:
    """The host does not know what it is."""
    return lambda positions: torch.tensor(positions, dtype=torch.int64, device=device) * 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_index_that_the_host_knows_is_refused_at_the_call(name: str) -> None:
    error = outcome(lambda d: CALLS[name](matrix(d), from_host(d)), "cpu")
    x, positions = matrix("pjrt"), from_host("pjrt")

    with pytest.raises((IndexError, RuntimeError)) as refused:
        CALLS[name](x, positions)

    assert [type(refused.value).__name__, str(refused.value)] == error[:2]
    assert torch.equal(x.cpu(), matrix("cpu"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "make"),
    [*((n, computed) for n in (*CALLS, *BY_PARTS)), *((n, from_host) for n in BY_PARTS)],
)
def test_index_that_the_host_does_not_know_is_refused_at_the_next_read(
    name: str, make: Callable[[str], Make]
) -> None:
    call = {**CALLS, **BY_PARTS}[name]
    error = outcome(lambda d: call(matrix(d), from_host(d)), "cpu")
    result = call(matrix("pjrt"), make("pjrt"))

    with pytest.raises((IndexError, RuntimeError)) as refused:
        result.cpu()

    assert [type(refused.value).__name__, str(refused.value).splitlines()[0]] == error[:2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*BY_PARTS, *INSIDE])
def test_checks_download_nothing(name: str) -> None:
    x, call = matrix("pjrt"), {**BY_PARTS, **INSIDE}[name]
    before = counters.downloads

    kept = call(x, from_host("pjrt"))

    assert counters.downloads == before
    with contextlib.suppress(IndexError, RuntimeError):
        kept.cpu()


@pytest.mark.parametrize("make", [from_host, computed])
@pytest.mark.parametrize("name", INSIDE)
def test_index_in_range_is_as_on_cpu(name: str, make: Callable[[str], Make]) -> None:
    ours = INSIDE[name](matrix("pjrt"), make("pjrt")).cpu()

    torch.testing.assert_close(ours, INSIDE[name](matrix("cpu"), make("cpu")), equal_nan=True)


def test_no_value_is_lost_by_an_index_out_of_range_and_it_is_told_once() -> None:
    x = matrix("pjrt")
    wrong, right = x[computed("pjrt")([5])], x + 1

    with pytest.raises(IndexError, match=r"^index 5 .* size 3\n.*came before this one\.$"):
        right.cpu()

    assert torch.equal(right.cpu(), matrix("cpu") + 1)
    assert wrong.shape == (1, 4)
    torch.pjrt.synchronize()  # type: ignore[attr-defined]


def test_synchronize_tells_of_an_index_out_of_range() -> None:
    kept = matrix("pjrt")[computed("pjrt")([5])]

    with pytest.raises(IndexError, match="index 5"):
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
    assert kept.shape == (1, 4)


def test_first_of_several_indices_out_of_range_is_told() -> None:
    x, i = matrix("pjrt"), computed("pjrt")
    fine, first, second = x[i([1])], x[i([7])], x[i([8])]

    with pytest.raises(IndexError, match="index 7 "):
        second.cpu()
    assert torch.equal(fine.cpu(), matrix("cpu")[1:2])
    assert first.shape == second.shape


def test_another_mistake_of_the_same_call_comes_first() -> None:
    x = matrix("pjrt")

    with pytest.raises(RuntimeError, match="Number of indices"):
        x.index_add(0, torch.tensor([9], device="pjrt"), x[:2])


def test_steps_with_checks_run_one_program() -> None:
    table = torch.ones(5, 2, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([table], lr=0.5)

    def step(n: int) -> None:
        positions = torch.full((3,), n, device="pjrt") % 5
        F.embedding(positions, table).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    torch_pjrt.sync()  # other tests may have left something
    for n in range(4):
        step(n)
    before = counters.programs_compiled
    for n in range(4, 8):
        step(n)

    assert counters.programs_compiled == before


def test_indices_that_are_bytes_of_other_integers_are_looked_at_as_they_are() -> None:
    def read(device: str) -> Tensor:
        halves = torch.tensor([1, 1], dtype=torch.int32).to(device)
        return torch.arange(4.0, device=device)[halves.view(torch.int64)]  # 2**32 + 1

    with pytest.raises(IndexError, match="index 4294967297 is out of bounds"):
        read("cpu")
    with pytest.raises(IndexError, match="index 4294967297 is out of bounds"):
        read("pjrt").cpu()


@pytest.mark.filterwarnings("ignore")
def test_checks_of_indices_keep_no_tensor() -> None:
    calls = {**CALLS, **{f"{name}, inside": call for name, call in INSIDE.items()}}
    found = {
        name: kept_by_checks(
            lambda make, call=call: call(
                make(matrix("cpu").tolist()), lambda where: make(where, dtype=torch.int64)
            )
        )
        for name, call in calls.items()
    }

    assert [name for name, (n_kept, _) in found.items() if n_kept] == []
    assert sum(has_checks for _, has_checks in found.values()) > 30


def test_step_with_labels_from_the_device_is_captured() -> None:
    model = torch.nn.Linear(4, 8).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch_pjrt.capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x, labels = torch.ones(3, 4).to("pjrt"), computed("pjrt")
    losses = [step(x, labels([1, 2, 3])) for _ in range(6)]

    assert step.replays > 0
    assert losses[0].item() > losses[5].item()
