"""Operators that work element by element, where a number is made of sizes: it becomes a tensor."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend.padding import Sized, Unsuited, rule_of, wide
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.arithmetic import number
from torch_pjrt_dynamo.padded.sized import NodeCall, Size

# The overload that takes a tensor where another takes a number.
_WITH_TENSOR: dict[Any, tuple[Any, str]] = {
    getattr(getattr(aten, name), overload): (getattr(getattr(aten, name), of_tensor), argument)
    for name, overload, of_tensor, argument in (
        *((name, "Scalar", "Tensor", "other") for name in ("add", "sub", "mul", "div", "rsub")),
        *((name, "Scalar", "Tensor", "other") for name in ("eq", "ne", "lt", "le", "gt", "ge")),
        *((name, "Scalar", "Tensor", "other") for name in ("remainder", "fmod")),
        ("pow", "Tensor_Scalar", "Tensor_Tensor", "exponent"),
        ("masked_fill", "Scalar", "Tensor", "value"),
    )
}
# They take a number where their schema has a tensor.
_TAKES_BOTH = frozenset(
    getattr(aten, name).Tensor
    for name in (
        *("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge"),
        *("remainder", "fmod"),
    )
)


def pointwise(call: NodeCall) -> Sized:
    sizes = {name: x for name, x in call.given.items() if isinstance(x, Size)}
    if not sizes:
        return rule_of(call.op)(call)  # type: ignore[misc]
    flowed = call.flow()
    result = _computed(call, sizes)
    return flowed(result.to(call.traced.dtype))


def _computed(call: NodeCall, sizes: dict[str, Size]) -> torch.Tensor:
    op, argument = _WITH_TENSOR.get(call.op, (call.op, "other"))
    if set(sizes) != {argument}:
        raise Unsuited("it takes a size as a number")
    value = number(sizes[argument].expr, call.sizes.counts)
    if not isinstance(value, torch.Tensor):
        return call.do(**{argument: value})
    given = {**call.given, argument: value}
    accepted = {a.name for a in op._schema.arguments}
    given = {name: call.plain(x) for name, x in given.items() if name in accepted}
    if set(call.given) - accepted - {"alpha"} or call.given.get("alpha", 1) != given.get(
        "alpha", 1
    ):
        raise Unsuited("it takes a size as a number")
    for name, x in given.items():
        if isinstance(x, torch.Tensor) and x.dtype != wide(x.dtype):
            given[name] = x.to(wide(x.dtype))
    return recorded(op, (), given)


RULES: dict[Any, Any] = dict.fromkeys((*_WITH_TENSOR, *_TAKES_BOTH), pointwise)
