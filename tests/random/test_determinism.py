"""The same seed gives the same run: with checkpoints, in other processes, with deterministic algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from fixture_types import Run

Op = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

TRAINING = """
import torch
from torch import nn
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Linear(32, 4)).to("pjrt")
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    loss = model(torch.randn(16, 8, device="pjrt")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print([p.sum().item().hex() for p in model.parameters()], torch.randperm(9, device="pjrt").tolist())
"""


@pytest.mark.slow
def test_two_processes_with_one_seed_agree_bit_by_bit(python: Run) -> None:
    first, second = (python(TRAINING).stdout for _ in range(2))

    assert first == second
    assert "0x" in first


FIRST_USE = """
import random
import numpy as np
import torch
np.random.seed(0), random.seed(0), torch.manual_seed(0)
before = np.random.get_state(legacy=False), random.getstate(), torch.get_rng_state().tolist()
torch.ones(3, device="pjrt").sum().item()
after = np.random.get_state(legacy=False), random.getstate(), torch.get_rng_state().tolist()
print(str(before) == str(after), np.random.rand())
"""


def test_the_first_use_of_the_device_draws_no_numbers_of_the_host(python: Run) -> None:
    assert python(FIRST_USE).stdout.split() == ["True", "0.5488135039273248"]


def attended(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x, x, x)


# What PyTorch's accelerators refuse, or do another way, if algorithms are to be deterministic.
OPERATORS: dict[str, Op] = {
    "scatter_add": lambda x, i: torch.zeros_like(x).scatter_add(0, i, x),
    "index_add": lambda x, i: torch.zeros_like(x).index_add(0, i[:, 0], x),
    "index_put": lambda x, i: torch.zeros_like(x).index_put((i[:, 0],), x, accumulate=True),
    "index_copy": lambda x, i: torch.zeros_like(x).index_copy(0, torch.arange(6).to(i), x),
    "gather": lambda x, i: x.gather(0, i),
    "cumsum": lambda x, i: x.cumsum(0),
    "kthvalue": lambda x, i: x.kthvalue(2).values,
    "median": lambda x, i: x.median(0).values,
    "embedding": lambda x, i: nn.functional.embedding(i, x),
    "bilinear": lambda x, i: nn.functional.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "bicubic": lambda x, i: nn.functional.interpolate(x[None, None], scale_factor=2, mode="bicubic"),
    "adaptive_avg_pool2d": lambda x, i: nn.functional.adaptive_avg_pool2d(x[None], 3),
    "adaptive_max_pool2d": lambda x, i: nn.functional.adaptive_max_pool2d(x[None], 3),
    "max_pool3d": lambda x, i: nn.functional.max_pool3d(x[None, None, None], (1, 2, 2)),
    "grid_sample": lambda x, i: nn.functional.grid_sample(
        x[None, None], torch.zeros(1, 2, 2, 2).to(x), align_corners=False
    ),
    "reflection_pad": lambda x, i: nn.functional.pad(x[None], (1, 1), mode="reflect"),
    "replication_pad": lambda x, i: nn.functional.pad(x[None], (1, 1), mode="replicate"),
    "repeat_interleave": lambda x, i: x.repeat_interleave(2, 0),
    "nll_loss": lambda x, i: nn.functional.cross_entropy(x, i[:, 0]),
    "histc": lambda x, i: torch.histc(x.detach()),
    "bincount": lambda x, i: torch.bincount(i[:, 0], x[:, 0].detach()),
    "max_unpool": lambda x, i: nn.functional.max_unpool1d(x[None], i[None] % 12, (2,)),
    "put": lambda x, i: torch.zeros_like(x).put(i, x),
    "product": lambda x, i: x @ x,
    "attention": lambda x, i: attended(x[None, None]),
}  # fmt: skip


@pytest.fixture
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def with_gradient(op: Op, device: str) -> list[torch.Tensor] | str:
    torch.manual_seed(0)
    x = torch.randn(6, 6).to(device).requires_grad_()
    i = (torch.arange(36) * 7 % 6).reshape(6, 6).to(device)
    try:
        y = op(x, i)
        if y.requires_grad:
            y.square().sum().backward()
        return [t.detach().cpu() for t in (y, x.grad) if t is not None]
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.usefixtures("_deterministic")
def test_deterministic_algorithms_refuse_only_what_they_refuse_on_cpu(name: str) -> None:
    ours, theirs = (with_gradient(OPERATORS[name], d) for d in ("pjrt", "cpu"))

    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs
    else:
        torch.testing.assert_close(ours, theirs)


def test_fork_leaves_the_generators_of_device_and_cpu_alone() -> None:
    torch.manual_seed(2)
    expected = torch.rand(4, device="pjrt").tolist(), torch.rand(4).tolist()
    torch.manual_seed(2)

    with torch.random.fork_rng(device_type="pjrt"):
        torch.manual_seed(99)
        torch.rand(3, device="pjrt")
        with torch.random.fork_rng([0], device_type="pjrt"):
            _ = torch.rand(3), torch.rand(3, device="pjrt")

    assert (torch.rand(4, device="pjrt").tolist(), torch.rand(4).tolist()) == expected


def _layers() -> list[nn.Module]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Tanh()) for _ in range(4)]
    return [layer.to("pjrt") for layer in layers]


def _trained(forward: Callable[[list[nn.Module], torch.Tensor], Any]) -> list[torch.Tensor]:
    """Gradients of two steps, and what the generator draws next."""
    layers = _layers()
    torch.manual_seed(11)
    results = []
    for _ in range(2):
        x = torch.ones(16, 8, device="pjrt", requires_grad=True)
        forward(layers, x).square().sum().backward()
        results += [x.grad, *(p.grad for layer in layers for p in layer.parameters())]
    results.append(torch.rand(4, device="pjrt"))
    return [t.cpu() for t in results if t is not None]


def _plain(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


@pytest.mark.slow("rows")
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the nested ones
@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_checkpointed_layers_give_the_gradients_of_plain_ones(
    use_reentrant: bool, autocast: bool
) -> None:
    def checkpointed(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=use_reentrant)
        return x

    def nested(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
        inner = layers[2:]
        x = checkpoint(_plain, layers[:2], x, use_reentrant=use_reentrant)
        return checkpoint(checkpointed, inner, x, use_reentrant=use_reentrant)

    def sequential(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
        return checkpoint_sequential(nn.Sequential(*layers), 2, x, use_reentrant=use_reentrant)

    # A recomputed part is another program, which XLA may round to bfloat16 in other places.
    close: dict[str, Any] = (
        {"rtol": 2e-2, "atol": 1e-3} if autocast else {"rtol": 1e-5, "atol": 1e-6}
    )
    with torch.autocast("pjrt", enabled=autocast):
        expected = _trained(_plain)
        for forward in (checkpointed, nested, sequential):
            torch.testing.assert_close(_trained(forward), expected, **close)
