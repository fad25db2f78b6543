"""Lowerings of `_foreach_*`: the rule of one tensor, applied to each tensor of the lists.

A row says which rule, and under which name it takes each argument that is not `self`. Lists are walked
side by side; what is no list is the same for all.
"""

from __future__ import annotations

from typing import Any

import jax

from torch_pjrt.lowering import reduction
from torch_pjrt.lowering.matmul import table as matmul_table
from torch_pjrt.lowering.pointwise import binary, ternary, unary
from torch_pjrt.lowering.table import LoweringTable, Rule
from torch_pjrt.overloads import aten

Array = jax.Array
table = LoweringTable("foreach")
_base = LoweringTable.merged(
    "foreach's", [unary.table, binary.table, ternary.table, reduction.table, matmul_table]
)


def each(rule: Rule, *names: str) -> Rule:
    """`rule` over lists; `names` are what it calls the arguments after `self` ("" for by position)."""

    def over_lists(self: list[Array], *args: Any, **kwargs: Any) -> tuple[Array, ...]:
        results = []
        for i, x in enumerate(self):
            values = [a[i] if isinstance(a, (list, tuple)) else a for a in args]
            by_position = [v for v, n in zip(values, names, strict=False) if not n]
            by_name = {n: v for v, n in zip(values, names, strict=False) if n}
            results.append(rule(x, *by_position, **by_name, **kwargs))
        return tuple(results)

    return over_lists


def _elements(rule: Rule) -> Rule:
    """For overloads whose scalars come as one 1-d tensor: hand out its elements."""

    def over_lists(
        self: list[Array], tensor1: list[Array], tensor2: list[Array], scalars: Array
    ) -> tuple[Array, ...]:
        columns = zip(self, tensor1, tensor2, scalars, strict=True)
        return tuple(rule(x, a, b, value=s) for x, a, b, s in columns)

    return over_lists


#   foreach                 one tensor
UNARY = [
    (aten._foreach_abs, aten.abs),
    (aten._foreach_acos, aten.acos),
    (aten._foreach_asin, aten.asin),
    (aten._foreach_atan, aten.atan),
    (aten._foreach_ceil, aten.ceil),
    (aten._foreach_cos, aten.cos),
    (aten._foreach_cosh, aten.cosh),
    (aten._foreach_exp, aten.exp),
    (aten._foreach_expm1, aten.expm1),
    (aten._foreach_floor, aten.floor),
    (aten._foreach_frac, aten.frac),
    (aten._foreach_log, aten.log),
    (aten._foreach_log10, aten.log10),
    (aten._foreach_log1p, aten.log1p),
    (aten._foreach_log2, aten.log2),
    (aten._foreach_neg, aten.neg),
    (aten._foreach_reciprocal, aten.reciprocal),
    (aten._foreach_round, aten.round),
    (aten._foreach_rsqrt, aten.rsqrt),
    (aten._foreach_sigmoid, aten.sigmoid),
    (aten._foreach_sign, aten.sign),
    (aten._foreach_sin, aten.sin),
    (aten._foreach_sinh, aten.sinh),
    (aten._foreach_sqrt, aten.sqrt),
    (aten._foreach_tan, aten.tan),
    (aten._foreach_tanh, aten.tanh),
    (aten._foreach_trunc, aten.trunc),
]  # fmt: skip

#   foreach                 one tensor and a tensor or number   its overloads
BINARY: list[tuple[Any, Any, tuple[str, ...]]] = [
    (aten._foreach_add, aten.add.Tensor, ("Scalar", "List", "ScalarList", "Tensor")),
    (aten._foreach_sub, aten.sub.Tensor, ("Scalar", "List", "ScalarList")),
    (aten._foreach_mul, aten.mul.Tensor, ("Scalar", "List", "ScalarList", "Tensor")),
    (aten._foreach_div, aten.div.Tensor, ("Scalar", "List", "ScalarList", "Tensor")),
    (aten._foreach_maximum, aten.maximum.default, ("Scalar", "List", "ScalarList")),
    (aten._foreach_minimum, aten.minimum.default, ("Scalar", "List", "ScalarList")),
    (aten._foreach_clamp_min, aten.maximum.default, ("Scalar", "List", "ScalarList")),
    (aten._foreach_clamp_max, aten.minimum.default, ("Scalar", "List", "ScalarList")),
]  # fmt: skip

for packet, one in UNARY:
    table.add(packet.default, each(_base.rule_of(one.default)))

for packet, one, overloads in BINARY:
    for overload in overloads:
        table.add(getattr(packet, overload), each(_base.rule_of(one), ""))

for packet, one in ((aten._foreach_addcmul, aten.addcmul), (aten._foreach_addcdiv, aten.addcdiv)):
    for overload in ("Scalar", "ScalarList"):
        table.add(getattr(packet, overload), each(_base.rule_of(one.default), "", "", "value"))
    table.add(packet.Tensor, _elements(_base.rule_of(one.default)))

for overload in ("Scalar", "List", "ScalarList"):
    table.add(getattr(aten._foreach_lerp, overload), each(_base.rule_of(aten.lerp.Scalar), "", ""))

for overload in ("Scalar", "ScalarList"):
    table.add(
        getattr(aten._foreach_pow, overload),
        each(_base.rule_of(aten.pow.Tensor_Scalar), ""),
        static=["exponent"],
    )
table.add(aten._foreach_pow.List, each(_base.rule_of(aten.pow.Tensor_Tensor), ""))
table.add(
    aten._foreach_norm.Scalar,
    each(_base.rule_of(aten.linalg_vector_norm.default), ""),
    static=["ord"],
)


@table.lowers(aten._foreach_clone.default)
def _foreach_clone(self: list[Array]) -> tuple[Array, ...]:
    return tuple(self)


@table.lowers(aten._foreach_zero.default)
def _foreach_zero(self: list[Array]) -> tuple[Array, ...]:
    return tuple(jax.numpy.zeros_like(x) for x in self)


@table.lowers(aten._foreach_copy.default)
def _foreach_copy(self: list[Array], src: list[Array]) -> tuple[Array, ...]:
    """Each of `src` in the dtype and shape of its counterpart in `self`."""
    pairs = zip(self, src, strict=True)
    return tuple(jax.numpy.broadcast_to(s.astype(x.dtype), x.shape) for x, s in pairs)
