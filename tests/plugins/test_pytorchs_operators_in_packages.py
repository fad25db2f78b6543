"""What packages compute of PyTorch's own operators takes all that the installed PyTorch says of a call."""

from __future__ import annotations

import importlib
import inspect
from types import FunctionType
from typing import Any

import pytest
import torch

from torch_pjrt.client.client import client
from torch_pjrt.lowering.added import ADDED
from torch_pjrt.lowering.later_arguments import unknown_arguments
from torch_pjrt.overloads import PYTORCHS

# PyTorch's modules that packages wait for, to give rules for the operators of these namespaces.
MODULES = {
    "torch.nn.attention.varlen": "torch_attn",
    "torch.ao.quantization.fx._decomposed": "quantized_decomposed",
}
NEVER_PASSED = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


@pytest.mark.parametrize("module", MODULES)
def test_rules_take_all_arguments(module: str) -> None:
    torch.zeros(1, device="pjrt")  # starts the device, and the packages wait from then on
    importlib.import_module(module)
    ours = {op: row for op, row in ADDED.items() if op.namespace == MODULES[module]}

    assert ours, f"no rules for {MODULES[module]}"
    unknown = {
        str(op): [a.name for a in unknown_arguments(op, row) if a.name not in NEVER_PASSED]
        for op, row in ours.items()
    }
    assert {op: names for op, names in unknown.items() if names} == {}


def test_rules_of_the_device_and_of_plugins_take_all_arguments() -> None:
    torch.zeros(1, device="pjrt")
    unknown = {
        str(op): [a.name for a in unknown_arguments(op, row) if a.name not in NEVER_PASSED]
        for op, row in client().lowerings.items()
        if hasattr(op, "_schema") and op.namespace in PYTORCHS
    }

    assert {op: names for op, names in unknown.items() if names} == {}


# Operators of higher order: PyTorch's module, the operator, our function, whether it is called by names.
HIGHER_ORDER = [
    ("triton_kernel_wrap", "triton_kernel_wrapper_mutation", "triton.operators._mutation", True),
    (
        "triton_kernel_wrap",
        "triton_kernel_wrapper_functional",
        "triton.operators._functional",
        True,
    ),
    ("flex_attention", "flex_attention", "flex.operator._forward", False),
    ("flex_attention", "flex_attention_backward", "flex.operator._backward", False),
]


@pytest.mark.parametrize(("theirs", "name", "ours", "by_names"), HIGHER_ORDER)
def test_functions_for_operators_of_higher_order_take_all_arguments(
    theirs: str, name: str, ours: str, by_names: bool
) -> None:
    operator: Any = getattr(importlib.import_module(f"torch._higher_order_ops.{theirs}"), name)
    file, _, function = ours.rpartition(".")
    module = importlib.import_module(f"torch_pjrt_kernels.{file}")
    call = type(operator).__call__
    assert isinstance(call, FunctionType)
    ignored = getattr(module, "_BESIDES", frozenset())
    asked = [x for x in inspect.signature(call).parameters if x not in {"self", *ignored}]

    taken = [x for x in inspect.signature(getattr(module, function)).parameters if x != "module"]

    assert set(asked) <= set(taken) if by_names else len(asked) == len(taken)
