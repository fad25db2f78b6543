"""The strings "xla" and "xla:0", and the device of that type, mean `pjrt:0`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._prims.context import torch_to_refs_map

import torch_xla

MAKERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "ones": lambda d: torch.ones(2, device=d),
    "empty_strided": lambda d: torch.empty_strided((2, 3), (1, 2), device=d).fill_(1),
    "arange": lambda d: torch.arange(3, device=d),
    "full": lambda d: torch.full((2,), 3.0, device=d),
    "eye": lambda d: torch.eye(2, device=d),
    "tensor": lambda d: torch.tensor([1.0, 2.0], device=d),
    "as_tensor": lambda d: torch.as_tensor(np.ones(2), device=d),
    "new_ones": lambda d: torch.ones(1).new_ones(2, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2), device=d),
    "randperm": lambda d: torch.randperm(1, device=d),
    "to": lambda d: torch.ones(2).to(d),
    "to device=": lambda d: torch.ones(2).to(device=d),
    "to with a dtype": lambda d: torch.ones(2).to(d, torch.bfloat16),
    "to from the device": lambda d: torch.ones(2, device="pjrt").to(d),
    "a layer's device": lambda d: nn.init.ones_(nn.Linear(2, 2, device=d).weight),
    "a layer moved": lambda d: nn.init.ones_(nn.Linear(2, 2).to(d).weight),
    "a Parameter moved": lambda d: nn.Parameter(torch.ones(2)).to(d),
}


@pytest.mark.parametrize(
    "device", ["xla", "xla:0", torch.device("xla"), torch.device("xla:0")], ids=str
)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_tensor_is_on_pjrt_with_the_cpus_values(maker: str, device: Any) -> None:
    made, wanted = MAKERS[maker](device), MAKERS[maker]("cpu")

    assert made.device == torch.device("pjrt:0")
    assert (made.dtype, made.stride(), made.requires_grad) == (
        wanted.dtype,
        wanted.stride(),
        wanted.requires_grad,
    )
    assert torch.equal(made.detach().cpu(), wanted.detach())


def test_other_devices_are_left_alone() -> None:
    assert torch.ones(2).to("cpu").device.type == "cpu"
    assert torch.ones(2).to("meta").device.type == "meta"
    assert torch.ones(2).to(torch.float64).dtype == torch.float64
    assert torch.tensor([1], device="cpu").device.type == "cpu"


def test_gradients_come_back_to_a_cpu_parameter() -> None:
    weight = torch.ones(2, requires_grad=True)

    (weight.to("xla") * 3).sum().backward()

    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_autocast_of_xla_is_autocast_of_the_device() -> None:
    layer = nn.Linear(4, 2).to("xla")

    with torch.autocast("xla", dtype=torch.bfloat16):
        inside = layer(torch.ones(1, 4, device="xla"))

    assert inside.dtype == torch.bfloat16
    assert layer(torch.ones(1, 4, device="xla")).dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", "pjrt", "xla"])
def test_a_module_without_a_size_is_moved(device: str) -> None:
    module = nn.LazyLinear(3).to(device).double()

    assert module(torch.ones(2, 4, dtype=torch.float64, device=device)).shape == (2, 3)


def test_the_method_is_in_the_tables_that_have_pytorchs() -> None:
    original = torch.Tensor.to.__wrapped__  # type: ignore[attr-defined]
    without_size: Any = nn.parameter.UninitializedParameter
    tables = [
        without_size._allowed_methods,
        torch.overrides.get_testing_overrides(),
        torch_to_refs_map(),
        {original: 1},
    ]

    assert original is not torch.Tensor.to and original == torch.Tensor.to
    assert all(original in table and torch.Tensor.to in table for table in tables)
    assert torch.overrides.is_tensor_method_or_property(torch.Tensor.to)
    assert torch.Tensor.to != torch.Tensor.cpu
    assert torch.Tensor.to(torch.ones(2), "xla").device.type == "pjrt"


def test_a_subclass_that_knows_pytorchs_method_is_asked_with_it() -> None:
    original, asked = torch.Tensor.to.__wrapped__, []  # type: ignore[attr-defined]

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append({original: "to"}.get(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    assert torch.ones(2).as_subclass(Sub).to("pjrt").device.type == "pjrt"
    assert "to" in asked


def test_a_compiled_function_moves_to_xla() -> None:
    compiled = torch.compile(lambda x: x.to("xla", torch.float32) * 2, backend="pjrt")

    assert compiled(torch.ones(2, device="pjrt")).tolist() == [2.0, 2.0]


def test_subclasses_and_copies_go_to_the_device() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))

    copied = copy.deepcopy(model).to("xla")

    assert {p.device.type for p in [*copied.parameters(), *copied.buffers()]} == {"pjrt"}


def test_the_device_of_the_module_is_pjrt() -> None:
    assert torch_xla.device() == torch.device("pjrt:0")
    assert torch_xla.devices() == [torch_xla.device()]
    assert torch_xla.device_count() == 1


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_torchscript_still_knows_the_functions() -> None:
    @torch.jit.script
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(2.0) + torch.as_tensor(1.0)

    assert doubled(torch.ones(2)).tolist() == [3.0, 3.0]
