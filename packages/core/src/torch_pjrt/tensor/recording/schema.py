"""What an operator's schema says about how to record it: a `OverloadPlan`, made once for each overload.

In-place (`add_`), `out=` (`add.out`) and functional (`add.Tensor`) forms of an operator are one
computation. A plan names the functional overload that computes it and says where the results go.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch


class Kind(enum.Enum):
    """How an argument of a schema is treated when a call is recorded."""

    TENSOR = "a tensor (or a Python number in its place)"
    TENSORS = "a list of tensors, some of them perhaps None"
    NUMBER = "a Python number that may become an input of the program"
    NUMBERS = "a list of such numbers"
    STATIC = "part of the signature"
    DROPPED = "no rule sees it: device, layout, memory format"


_KINDS = {
    "Tensor": Kind.TENSOR,
    "Optional[Tensor]": Kind.TENSOR,
    "List[Tensor]": Kind.TENSORS,
    "Optional[List[Tensor]]": Kind.TENSORS,
    "List[Optional[Tensor]]": Kind.TENSORS,
    "number": Kind.NUMBER,
    "Optional[number]": Kind.NUMBER,
    "float": Kind.NUMBER,
    "Optional[float]": Kind.NUMBER,
    "List[number]": Kind.NUMBERS,
    "List[float]": Kind.NUMBERS,
    "Optional[List[float]]": Kind.NUMBERS,
}
_INT64 = 4  # schemas hold dtypes as numbers; this is the only one that occurs as a default
_RETURNED = frozenset(("Tensor", "List[Tensor]", "int"))
_DROPPED = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of the functional overload; `type` is the schema's own word for its type."""

    name: str
    type: str
    kind: Kind
    keyword_only: bool
    has_default: bool
    default: Any

    @property
    def optional(self) -> bool:
        return self.type.startswith("Optional")


@dataclass(frozen=True)  # no slots: properties are computed once
class OverloadPlan:
    """How to record a call of `op`.

    functional  the overload whose rule computes it; None if it has no functional form.
    arguments   those of the functional overload, in order.
    writes      for each result of the functional overload, the name of the argument of `op` that it is
                written to; None for a result that is returned as a new tensor.
    returns     "tensor", "tuple", "list", "nothing" (`_foreach_add_`), or "other" (a bool, a number).
    random      PyTorch tags it as drawing random numbers.
    outs        the names of its `out=` arguments.
    in_turn     it writes to one tensor of a list after the other, as `_foreach_add_` does.
    """

    op: Any
    functional: Any
    arguments: tuple[Argument, ...]
    writes: tuple[str | None, ...]
    returns: str
    random: bool
    outs: tuple[str, ...]
    in_turn: bool

    @cached_property
    def mutates(self) -> bool:
        return any(self.writes)

    @cached_property
    def on_lists(self) -> bool:
        """It treats element by element of its lists, as `_foreach_add` does."""
        return self.op._schema.name.startswith("aten::_foreach_")

    @cached_property
    def decides_dtype(self) -> bool:
        """It computes in the dtype of its `out=`."""
        return bool(self.outs) and self.op._schema.name in _COMPUTE_IN_DTYPE_OF_OUT

    @cached_property
    def is_factory(self) -> bool:
        """It makes tensors from no tensor."""
        return not any(a.kind in (Kind.TENSOR, Kind.TENSORS) for a in self.arguments)


_COMPUTE_IN_DTYPE_OF_OUT = frozenset(
    f"aten::{name}"
    for name in (
        *("arange", "cumprod", "cumsum", "linspace", "logspace"),
        *("nansum", "prod", "rand", "randn", "range", "sum"),
    )
)


@cache
def plan_of(op: Any) -> OverloadPlan:
    """The plan of one overload."""
    schema = op._schema
    functional = op if not schema.is_mutable else functional_of(op)
    source = (functional or op)._schema
    own = {a.name: a for a in schema.arguments}
    arguments = tuple(_argument(a, own.get(a.name, a)) for a in source.arguments)
    writes = _writes(op, functional) if schema.is_mutable and functional is not None else ()
    returns = [str(r.type) for r in source.returns]
    random = torch.Tag.nondeterministic_seeded in op.tags
    if functional is None:
        kind = "other"
    elif not schema.returns:
        kind = "nothing"
    elif "Tensor" not in "".join(returns) or not all(r in _RETURNED for r in returns):
        kind = "other"
    elif returns == ["List[Tensor]"]:
        kind = "list"
    else:
        kind = "tensor" if len(returns) == 1 else "tuple"
    writes = writes or (None,) * len(returns)
    outs = tuple(_out_names(op))
    in_turn = schema.name.startswith("aten::_foreach_") and schema.is_mutable and not outs
    return OverloadPlan(op, functional, arguments, writes, kind, random, outs, in_turn)


def _argument(a: Any, own: Any) -> Argument:
    """The functional overload's argument `a`; the operator's `own` may have another default."""
    type_ = str(a.type)
    kind = _KINDS.get(type_, Kind.STATIC)
    if a.name in _DROPPED:
        kind = Kind.DROPPED
    has_default = own.has_default_value()
    default = own.default_value if has_default else a.default_value
    if a.name == "dtype" and default == _INT64:
        default = torch.int64
    return Argument(
        a.name, type_, kind, a.kwarg_only, has_default or a.has_default_value(), default
    )


def functional_form(op: Any) -> Any:
    """`op`, or the overload that computes what it writes; None for a writing one if PyTorch has none."""
    return functional_of(op) if op._schema.is_mutable else op


def functional_of(op: Any) -> Any:
    """The overload that computes what `op` writes, or None if PyTorch has none."""
    namespace, _, base = op._schema.name.partition("::")
    plain = base.removesuffix("_")
    packet_names = [plain, base, f"{plain}_functional"]
    if base.startswith("__i"):  # `__iand__` is computed by `__and__`
        packet_names = [f"__{base.removeprefix('__i')}"]
    wanted = _input_types(op)
    for packet_name in packet_names:
        packet = getattr(getattr(torch.ops, namespace), packet_name, None)
        if packet is None:
            continue
        for overload_name in packet.overloads():
            candidate = getattr(packet, overload_name)
            if candidate._schema.is_mutable or _input_types(candidate) != wanted:
                continue
            if _results_match(op, candidate):
                return candidate
    return None


def _out_names(op: Any) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


def _input_types(op: Any) -> list[tuple[str, str]]:
    """Names and types of what an operator reads; factories' tensor options do not count."""
    return [
        (a.name, str(a.type))
        for a in op._schema.arguments
        if not a.is_out
        and a.name not in ("layout", "device", "pin_memory", "memory_format", "dtype")
    ]


def _written(op: Any) -> list[str]:
    return [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]


def _results_match(op: Any, functional: Any) -> bool:
    if op._schema.name.split("::")[1].startswith("_fused"):
        return len(functional._schema.returns) >= len(_written(op))
    n_fresh = sum(1 for r in op._schema.returns if r.alias_info is None)
    return len(functional._schema.returns) == n_fresh + len(_written(op))


def _writes(op: Any, functional: Any) -> tuple[str | None, ...]:
    """Where each result of the functional overload goes.

    Fresh results first, then `out=` arguments, then inputs that are written to, like running statistics.
    """
    outs = _out_names(op)
    written = [*outs, *[name for name in _written(op) if name not in outs]]
    n_results = len(functional._schema.returns)
    n_fresh = n_results - len(written)
    if op._schema.name.split("::")[1].startswith("_fused"):
        by_result = {f"{name}_out": name for name in written}
        return tuple(by_result.get(r.name) for r in functional._schema.returns)
    return (*([None] * n_fresh), *written)
