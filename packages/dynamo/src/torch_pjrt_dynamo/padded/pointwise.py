"""Operators that work element by element: what is in the room stays there."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend.padding import is_pointwise
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.arithmetic import number
from torch_pjrt_dynamo.padded.dims import Dim, NotProvable
from torch_pjrt_dynamo.padded.sized import Call, Size, Sized, wide

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
_SAME = frozenset((aten.alias.default, aten.clone.default, aten.detach.default))
# They take a number where their schema has a tensor.
_TAKES_BOTH = frozenset(
    getattr(aten, name).Tensor
    for name in (
        *("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge"),
        *("remainder", "fmod"),
    )
)


def suits(op: Any) -> bool:
    """Whether the operator is one of these. One that draws numbers would draw others for another shape."""
    return (
        isinstance(op, torch._ops.OpOverload)
        and (op in _SAME or is_pointwise(op))
        and torch.Tag.nondeterministic_seeded not in op.tags
        and not op._schema.is_mutable
    )


def pointwise(call: Call) -> Sized:
    tensors = [x for x in call.given.values() if isinstance(x, Sized)]
    dims = broadcast([x.dims for x in tensors])
    result = _computed(call)
    if not isinstance(result, torch.Tensor):
        raise NotProvable(f"`{call.op}` has several results")
    if isinstance(call.traced, torch.Tensor) and result.dtype != call.traced.dtype:
        result = result.to(call.traced.dtype)
    return call.sizes.sized(result, dims)


def _computed(call: Call) -> Any:
    sizes = {name: x for name, x in call.given.items() if isinstance(x, Size)}
    if not sizes:
        return call.do()
    op, argument = _WITH_TENSOR.get(call.op, (call.op, "other"))
    if set(sizes) != {argument} or (op is call.op and op not in _TAKES_BOTH):
        raise NotProvable("it takes a size as a number")
    value = number(sizes[argument].expr, call.sizes)
    if not isinstance(value, torch.Tensor):
        return call.do(**{argument: value})
    given = {**call.given, argument: value}
    accepted = {a.name for a in op._schema.arguments}
    given = {name: call.plain(x) for name, x in given.items() if name in accepted}
    if set(call.given) - accepted - {"alpha"} or call.given.get("alpha", 1) != given.get(
        "alpha", 1
    ):
        raise NotProvable("it takes a size as a number")
    for name, x in given.items():
        if isinstance(x, torch.Tensor) and x.dtype != wide(x.dtype):
            given[name] = x.to(wide(x.dtype))
    return recorded(op, (), given)


def broadcast(shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The dims of tensors that are broadcast together. Raises `NotProvable` where their room differs."""
    ndim = max(map(len, shapes), default=0)
    made: list[Dim] = [()] * ndim
    for dims in shapes:
        for place, dim in enumerate(dims, ndim - len(dims)):
            if not dim or dim == made[place]:
                continue
            if made[place]:
                raise NotProvable("it joins sizes that vary in another order")
            made[place] = dim
    return tuple(made)
