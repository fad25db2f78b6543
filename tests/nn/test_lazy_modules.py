"""Modules that learn their sizes at the first call do so on the device as on the CPU."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from quickly import compiled_quickly  # noqa: F401  all tests here
from sides import DEVICE, difference, on_both, saved

#   how it is made                                      the shape of its input
MODULES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "LazyLinear": (lambda **k: nn.LazyLinear(4, **k), (3, 5)),
    "LazyConv1d": (lambda **k: nn.LazyConv1d(4, 3, **k), (2, 3, 8)),
    "LazyConv2d": (lambda **k: nn.LazyConv2d(4, 3, **k), (2, 3, 8, 8)),
    "LazyConv3d": (lambda **k: nn.LazyConv3d(4, 2, **k), (2, 3, 4, 4, 4)),
    "LazyConvTranspose1d": (lambda **k: nn.LazyConvTranspose1d(4, 3, **k), (2, 3, 8)),
    "LazyConvTranspose2d": (lambda **k: nn.LazyConvTranspose2d(4, 3, **k), (2, 3, 8, 8)),
    "LazyConvTranspose3d": (lambda **k: nn.LazyConvTranspose3d(4, 2, **k), (2, 3, 4, 4, 4)),
    "LazyBatchNorm1d": (nn.LazyBatchNorm1d, (4, 3)),
    "LazyBatchNorm2d": (nn.LazyBatchNorm2d, (4, 3, 5, 5)),
    "LazyBatchNorm3d": (nn.LazyBatchNorm3d, (4, 3, 3, 3, 3)),
    "LazyInstanceNorm1d": (lambda **k: nn.LazyInstanceNorm1d(affine=True, **k), (4, 3, 6)),
    "LazyInstanceNorm2d": (lambda **k: nn.LazyInstanceNorm2d(affine=True, **k), (4, 3, 5, 5)),
    "LazyInstanceNorm3d": (
        lambda **k: nn.LazyInstanceNorm3d(affine=True, track_running_stats=True, **k),
        (4, 3, 3, 3, 3),
    ),
}
Make = Callable[..., nn.Module]


@pytest.fixture(autouse=True)
def _silently() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Lazy modules are a new feature")
        yield


# What happens to a module before its first call; it may be another one after.


def _moved(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return make().to(device)


def _made_there(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return make(device=device)


def _in_float64(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return make().to(device).double()


def _moved_in_float64(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return make().to(device, torch.float64)


def _there_and_back(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return make().to(device).cpu()


def _copied(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    return copy.deepcopy(make().to(device))


def _loaded(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    """From a module that has been called."""
    other = make()
    other(x.cpu())
    module = make().to(device)
    module.load_state_dict(other.state_dict())
    return module


def _loaded_by_assignment(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    other = make().to(device)
    other(x)
    module = make()
    module.load_state_dict(other.state_dict(), assign=True)
    return module


def _before_its_state_is_saved(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    """States of lazy modules may be saved and loaded before the first call."""
    module = make().to(device)
    state = {k: v for k, v in module.state_dict().items() if not is_lazy(v)}
    assert {k: saved(v).shape for k, v in state.items()} == {k: v.shape for k, v in state.items()}
    module.load_state_dict(module.state_dict())
    return module


def _called_on_the_cpu_first(make: Make, device: str, x: torch.Tensor) -> nn.Module:
    module = make()
    module(x.cpu())
    return module.to(device)


EVENTS = (
    _moved, _made_there, _in_float64, _moved_in_float64, _there_and_back, _copied, _loaded,
    _loaded_by_assignment, _before_its_state_is_saved, _called_on_the_cpu_first,
)  # fmt: skip


FIRST_EVENTS = (_moved, _loaded)
THROUGH_ALL_EVENTS = ("LazyLinear", "LazyConv2d", "LazyBatchNorm1d")


def results(event: Any, name: str, device: str) -> dict[str, Any]:
    """Types and dtypes before the first call; after it the output, state and gradients."""
    make, shape = MODULES[name]
    x = torch.sin(1.7 * torch.arange(torch.Size(shape).numel())).reshape(shape).to(device)
    torch.manual_seed(0)
    module = event(make, device, x)
    named = [*module.named_parameters(), *module.named_buffers()]
    before = [(k, type(v).__name__, v.dtype, v.requires_grad) for k, v in named]
    parameters = list(module.parameters())
    wanted = parameters[0].data if parameters else x
    with torch.no_grad():
        module(x.to(wanted))
        for i, p in enumerate(module.parameters()):  # initial values are random
            p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape) + i)
    assert all(a is b for a, b in zip(parameters, module.parameters(), strict=True))
    x = x.to(wanted).requires_grad_()
    y = module(x)
    y.backward(torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(y))
    gradients = [p.grad for p in module.parameters()]
    return {"before": before, "class": type(module).__name__, "y": y, "x": x.grad,
            "gradients": gradients, "state": dict(module.state_dict())}  # fmt: skip


@pytest.mark.slow("rows")
@pytest.mark.parametrize("name", MODULES)
def test_a_lazy_module_does_on_the_device_what_it_does_on_the_cpu(name: str) -> None:
    events = EVENTS if name in THROUGH_ALL_EVENTS else FIRST_EVENTS
    cases = [on_both(event.__name__, partial(results, event, name)) for event in events]

    # PyTorch cannot copy a buffer that has no size, nor load what has no statistics.
    unloaded = ["_loaded"] if "InstanceNorm" in name else []
    refused = ["_copied"] if name == "LazyBatchNorm1d" else unloaded
    assert [case.name for case in cases if case.cpu.error is not None] == refused
    found = [f"{case.name}: {line}" for case in cases if (line := difference(case))]
    assert not found, "\n".join(found)


def test_an_optimizer_that_knew_the_parameters_before_they_had_a_size_trains_them() -> None:
    module = nn.LazyLinear(2).to(DEVICE)
    weight = module.weight
    assert isinstance(weight, UninitializedParameter)
    module(torch.ones(1, 3, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    before = weight.detach().cpu()

    module(torch.ones(1, 3, device=DEVICE)).sum().backward()
    optimizer.step()

    torch.testing.assert_close(module.weight.detach().cpu(), before - 1)


def test_a_module_that_has_no_size_refuses_what_the_cpu_refuses() -> None:
    for device in ("cpu", DEVICE):
        module = nn.LazyLinear(2).to(device)
        with pytest.raises(ValueError, match="uninitialized parameter"):
            torch.add(module.weight, 1)
