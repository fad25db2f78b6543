"""Tensors of the CPU beside tensors of the device: which operators take them, as on every accelerator.

What an operator takes is on one device, above all what it writes to. The exceptions are PyTorch's own:

    a number     a CPU tensor without dims, in operators that compute each element on its own: one a call
    indices      those of `x[i]`, of any shape
    read whole   what the operator copies over, or looks at on the host, before it computes

An exception is a row of the tables here; nobody asks them unless a CPU tensor has turned up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_pjrt.overloads import aten

# They compute each element on its own, and yet take no CPU tensor: PyTorch compares all devices first.
SAME_DEVICE = frozenset(
    (
        "clamp",
        "clamp_max",
        "clamp_min",
        "gcd",
        "gelu_backward",
        "igamma",
        "igammac",
        "lcm",
        "logaddexp",
        "logaddexp2",
        "logit_backward",
        "native_dropout_backward",
        "nextafter",
        "sigmoid_backward",
        "silu_backward",
        "tanh_backward",
        "threshold_backward",
    )
)

# PyTorch leaves the comparison out in this form alone.
_UNLIKE_THEIR_KIND = (aten.clamp_max.Tensor_out, aten.clamp_min.Tensor_out)

# A list plus a tensor without dims, which has to be where the list is.
_LIST_AND_NUMBER = (aten._foreach_add.Tensor, aten._foreach_add_.Tensor)

# They take a number on the CPU, though PyTorch does not tag them as computing each element on its own.
TAKES_NUMBER = frozenset(
    (
        "binary_cross_entropy_with_logits",
        "dist",
        "floor_divide",
        "mse_loss",
        "rsub",
        "smooth_l1_loss",
        "soft_margin_loss",
    )
)

# They take as many numbers on the CPU as they have inputs.
TAKES_NUMBERS = frozenset(("linspace", "logspace", "where"))

#   operator             the arguments that may be numbers on the CPU; no others may
NUMBERS: dict[str, tuple[str, ...]] = {
    "addcdiv": ("tensor2",),
    "addcmul": ("tensor2",),
    "fill": ("value",),
    "index_fill": ("value",),
    "_index_put_impl": ("values",),
    "_unsafe_index_put": ("values",),
    "index_put": ("values",),
    "masked_fill": ("value",),
    "_fused_adagrad": ("lr",),
    "_fused_adam": ("lr",),
    "_fused_adamw": ("lr",),
    "_fused_sgd": ("lr",),
}

#   operator             the arguments that may be CPU tensors of any shape
WHOLE: dict[str, tuple[str, ...]] = {
    "_foreach_addcdiv": ("scalars",),
    "_foreach_addcmul": ("scalars",),
    "_foreach_copy": ("src",),
    "_index_put_impl": ("indices",),
    "_unsafe_index": ("indices",),
    "_unsafe_index_put": ("indices",),
    "as_strided_scatter": ("src",),
    "bernoulli": ("p",),
    "diagonal_scatter": ("src",),
    "index": ("indices",),
    "index_put": ("indices",),
    "select_scatter": ("src",),
    "slice_scatter": ("src",),
}


class OfSeveralDevices(Exception):
    """A list of tensors has elements on the CPU and on the device: each is for itself."""


def mismatch(device: torch.device) -> RuntimeError:
    """PyTorch's error for a tensor of `device` beside those of this one."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"pjrt:0 and {device}!"
    )


def refuse_mixed(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise PyTorch's error unless each tensor of another device may be where it is."""
    schema = op._schema
    name = name_of(op)
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    numbers = 0
    for argument, tensor in _tensors(op, args, kwargs):
        if tensor.device.type == "pjrt":
            continue
        if tensor.device.type != "cpu" or argument in written:
            raise mismatch(tensor.device)
        if argument in WHOLE.get(name, ()):
            continue
        if op in _LIST_AND_NUMBER and not tensor.ndim:
            raise RuntimeError(f"scalar tensor expected to be on pjrt:0 but is on {tensor.device}")
        if tensor.ndim or not _may_be_number(op, name, argument):
            raise mismatch(tensor.device)
        numbers += name not in TAKES_NUMBERS
    if numbers > 1:
        raise RuntimeError("Trying to pass too many CPU scalars to non-CPU kernel!")


def name_of(op: Any) -> str:
    """The name that in-place, `out=` and functional forms share."""
    base = op._schema.name.partition("::")[2]
    return base if base.endswith("__") else base.removesuffix("_")


def _may_be_number(op: Any, name: str, argument: str) -> bool:
    if name in NUMBERS:
        return argument in NUMBERS[name]
    if name.startswith("_foreach_"):  # as the operator on each element
        each = name.removeprefix("_foreach_")
        return argument in NUMBERS.get(each, (argument,)) and each not in SAME_DEVICE
    if name in SAME_DEVICE or _inputs(op) < 2:
        return op in _UNLIKE_THEIR_KIND
    return name in TAKES_NUMBER or name in TAKES_NUMBERS or _is_pointwise(op)


def _inputs(op: Any) -> int:
    return sum("Tensor" in str(a.type) for a in op._schema.arguments if not a.is_out)


def _is_pointwise(op: Any) -> bool:
    """Whether PyTorch says so of this form of the operator or of another: not all are tagged."""
    packet = op.overloadpacket
    base = packet._qualified_op_name.partition("::")[2]
    plain = f"__{base[3:]}" if base.startswith("__i") else base.removesuffix("_")
    for each in (packet, getattr(aten, plain, packet)):
        overloads = [getattr(each, o) for o in each.overloads()]
        if any(torch.Tag.pointwise in o.tags for o in overloads):
            return True
    return False


def _tensors(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    names = [a.name for a in op._schema.arguments]
    for name, given in (*zip(names, args, strict=False), *kwargs.items()):
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(x, torch.Tensor):
                yield name, x
