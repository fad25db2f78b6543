"""Once an error is handled, or a call has run on the CPU, nothing holds the tensors that were given.

Python's collector is off meanwhile: what it would find is a cycle, which holds memory until it runs.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import NonFiniteValue
from torch_pjrt.tensor.recording.fallback import run_on_cpu

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class _Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, *grad_outputs: Tensor) -> Tensor:
        raise ValueError("refused")


def _backward(x: Tensor) -> None:
    _Refused.apply(x.clone().requires_grad_()).sum().backward()


def _nan(x: Tensor) -> None:
    with torch_pjrt.check_nans():
        ((x - x) / 0.0).tolist()


def _printed_nan(x: Tensor) -> None:
    with torch_pjrt.check_nans():
        str((x - x) / 0.0)


def _of_loader(x: Tensor) -> None:
    def batches() -> Iterator[Tensor]:
        yield torch.ones(2)
        raise ValueError("no more")

    for batch in torch_pjrt.DeviceLoader(batches(), "pjrt"):
        x.add(batch)


ERRORS: dict[str, Callable[[Tensor], object]] = {
    "shapes": lambda x: x + x[:2],
    "dtypes": lambda x: torch.dot(x, x.long()),
    "what the CPU kernel says": lambda x: torch.max_pool1d(x.reshape(1, 1, 4), 2, padding=3),
    "a number that is refused": lambda x: x.clone().uniform_(2, 1),
    "an index, at the read": lambda x: x[torch.tensor([9], device="pjrt")].tolist(),
    "singular": lambda x: torch.linalg.inv((x - x).reshape(2, 2)).tolist(),
    "a list": lambda x: torch.cat([x, x.reshape(2, 2)]),
    "overlap": lambda x: x.expand(3, 4).add_(1),
    "devices": lambda x: x + torch.ones(4),
    "on the CPU": lambda x: x.masked_fill(x > 0, torch.tensor(1j, device="pjrt")),
    "backward": _backward,
    "nan": _nan,
    "nan, printed": _printed_nan,
    "loader": _of_loader,
}
CALLS: dict[str, Callable[[Tensor], object]] = {
    "no rule": lambda x: torch.ops.aten._add_relu.Tensor(x, x),
    "asked for": lambda x: x.equal(x + 0),
    "a list": lambda x: run_on_cpu(torch.ops.aten.cat.default, ([x, x],), {}, is_asked_for=True),
    "two results": lambda x: run_on_cpu(
        torch.ops.aten.aminmax.default, (x,), {}, is_asked_for=True
    ),
    "in place": lambda x: run_on_cpu(torch.ops.aten.relu_.default, (x,), {}, is_asked_for=True),
}


def held_after(call: Callable[[Tensor], object]) -> bool:
    x = torch.arange(4.0, device="pjrt")
    call(x)
    there = weakref.ref(x)
    del x
    return there() is not None


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("time", ["first", "second"])
def test_an_error_that_is_handled_holds_nothing(name: str, time: str) -> None:
    def refused(x: Tensor) -> None:
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            ERRORS[name](x)

    if time == "second":
        held_after(refused)

    assert not held_after(refused)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_a_call_that_runs_on_the_cpu_holds_nothing(name: str) -> None:
    assert not held_after(CALLS[name])


def test_vmap_works_after_a_tensor_could_not_be_printed() -> None:
    """While PyTorch prints a tensor, `torch.func` is off, for as long as the frame that prints is there."""
    with pytest.raises(NonFiniteValue):
        _printed_nan(torch.ones(4, device="pjrt"))

    found = torch.vmap(torch.vmap(lambda row: row.new_zeros(2)))(torch.ones(2, 3, 4, device="pjrt"))

    assert found.shape == (2, 3, 2)
