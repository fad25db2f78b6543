"""Sums of a product and of what was made of it are those of the product as it was rounded.

LLVM may round `a * b - y` (or `+`) once, as a fused multiply-add, while `y` was made of the product as it was
rounded: its maximum, say. Where both should be equal the difference is then a rounding of the product. That
is no harm to small numbers. But a rounding of 1e12 is 65536, whose exponential is infinite: softmax would
give nan, and so would what somebody writes by hand with `max`, `sort`, `topk` or `logsumexp`. So such a
product is passed through a choice that changes nothing, and that LLVM cannot look through.

So are the two of `a * a - b * b`, which is 0 where `a` is `b` or `-b`. Below 0 it has no square root: windows
of Kaiser would begin and end with nan.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt_cpu.operations import (
    LOOPS_AND_BRANCHES,
    Operation,
    Value,
    each_operation,
    is_inexact,
)

_EXTREMES = frozenset(("stablehlo.maximum", "stablehlo.minimum"))
_SHAPES = frozenset(
    ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose")
)
_MOVES = _SHAPES | frozenset(
    (
        "stablehlo.abs",
        "stablehlo.concatenate",
        "stablehlo.dynamic_slice",
        "stablehlo.negate",
        "stablehlo.optimization_barrier",
        "stablehlo.pad",
        "stablehlo.reverse",
        "stablehlo.select",
        "stablehlo.slice",
    )
)
# What makes these is in memory, or ends in another operation than a product.
_NO_PRODUCT = frozenset(
    (
        "stablehlo.add",
        "stablehlo.constant",
        "stablehlo.convolution",
        "stablehlo.divide",
        "stablehlo.dot_general",
        "stablehlo.iota",
        "stablehlo.maximum",
        "stablehlo.minimum",
        "stablehlo.reduce",
        "stablehlo.sqrt",
        "stablehlo.subtract",
    )
)
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))

# What may give something that it was given as it is, or with a little added: the logarithm of a sum of
# exponentials, say. A product, but by one number, or a sum of all elements is another number.
_MAY_KEEP = (
    _MOVES
    | _SUMS
    | LOOPS_AND_BRANCHES
    | frozenset(
        (
            "chlo.top_k",
            "func.call",
            "stablehlo.clamp",
            "stablehlo.composite",
            "stablehlo.custom_call",
            "stablehlo.dynamic_gather",
            "stablehlo.dynamic_update_slice",
            "stablehlo.gather",
            "stablehlo.maximum",
            "stablehlo.minimum",
            "stablehlo.reduce",
            "stablehlo.reduce_window",
            "stablehlo.return",
            "stablehlo.scatter",
            "stablehlo.select_and_scatter",
            "stablehlo.sort",
        )
    )
)

_FOLDS_TO_OTHERS = frozenset(("stablehlo.add", "stablehlo.multiply", "stablehlo.return"))
_LOOKED_AT = 500  # operations, for one sum

# What makes a value: an operation, or the argument of a function or of a loop's body.
Maker = Any


def round_first(module: Any) -> None:
    """Keep LLVM from rounding a product, and its sum with what was made of it, at once."""
    operations = list(each_operation(module.operation))
    made_of: _MadeOf | None = None
    for operation in operations:
        if operation.name not in _SUMS or not _is_real(operation.results[0]):
            continue
        products = [_products(x) for x in operation.operands]
        if not any(products):
            continue
        made_of = made_of or _MadeOf(operations)
        x, y = operation.operands
        of_squares = operation.name == "stablehlo.subtract" and _is_square(x) and _is_square(y)
        if of_squares or made_of.any_of(y, products[0]) or made_of.any_of(x, products[1]):
            for position, found in enumerate(products):
                if found:
                    _pass_through_choice(operation, position)


def _is_real(value: Value) -> bool:
    return is_inexact(value) and not isinstance(value.type.element_type, ir.ComplexType)


def _is_square(value: Value) -> bool:
    """Whether it is a number times itself, spread or not."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _SHAPES:
        owner = owner.operands[0].owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.multiply":
        return False
    return owner.operands[0] == owner.operands[1]


def _pass_through_choice(operation: Operation, position: int) -> None:
    """`x` as `x if x == x else nan`."""
    x = operation.operands[position]
    with ir.InsertionPoint(operation), operation.location:
        number = ir.FloatAttr.get(x.type.element_type, float("nan"))
        nan = stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(x.type, number)).result
        direction = stablehlo.ComparisonDirectionAttr.get("EQ")
        is_number = stablehlo.CompareOp(x, x, direction).result
        chosen = stablehlo.SelectOp(is_number, x, nan)
    operation.operands[position] = chosen.result


def _is_extreme(value: Value) -> bool:
    """Whether it is a fold to the greatest or least, spread or with another number in some places."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _SHAPES:
        owner = owner.operands[0].owner
    if isinstance(owner, ir.Block):
        return False
    if owner.name == "stablehlo.select":
        return _is_extreme(owner.operands[1]) or _is_extreme(owner.operands[2])
    if owner.name != "stablehlo.reduce":
        return False
    return any(inner.operation.name in _EXTREMES for inner in owner.regions[0].blocks[0].operations)


def _products(value: Value) -> list[Maker]:
    """What may end in a product and be computed together with the sum; moved or not."""
    found: list[Maker] = []
    open_, seen = [value], set()
    while open_:
        value = open_.pop()
        owner = value.owner
        if value in seen:
            continue
        seen.add(value)
        if isinstance(owner, ir.Block):
            outer = owner.owner
            if not (outer.name == "func.func" and outer.attributes["sym_name"].value == "main"):  # pyright: ignore[reportAttributeAccessIssue]
                found.append(value)
        elif owner.name in _MOVES:
            open_ += owner.operands
        elif owner.name not in _NO_PRODUCT:
            found.append(owner.operation)
    return found


class _MadeOf:
    """What each value of a module is made of, by the place of its maker in the module."""

    def __init__(self, operations: list[Operation]) -> None:
        self._place: dict[Maker, int] = {}
        self._of: list[set[int]] = []
        for operation in operations:
            self._add(operation)

    def any_of(self, value: Value, makers: list[Maker]) -> bool:
        """Whether `value` is made of one of the makers, directly or not, or of others' maximum.

        A product may be computed once for its maximum and again for the difference.
        """
        if not makers:
            return False
        if _is_extreme(value):
            return True
        wanted = {self._place_of(maker) for maker in makers}
        first = min(wanted)
        open_ = [self._place_of(_maker(value))]
        seen: set[int] = set()
        while open_:
            place = open_.pop()
            if place in wanted:
                return True
            if place > first and place not in seen:
                seen.add(place)
                open_ += self._of[place]
                if len(seen) > _LOOKED_AT:
                    return True  # for all we know
        return False

    def _add(self, operation: Operation) -> None:
        if not _may_keep(operation):
            return
        made_of = {self._place_of(_maker(x)) for x in operation.operands}
        place = self._place_of(operation)
        if operation.name in LOOPS_AND_BRANCHES:  # it has come before what is in it
            made_of |= {
                self._place_of(_maker(x))
                for inner in each_operation(operation)
                for x in inner.operands
            }
        self._of[place] |= made_of

    def _place_of(self, maker: Maker) -> int:
        place = self._place.get(maker)
        if place is None:
            place = self._place[maker] = len(self._of)
            self._of.append(set())
        return place


def _may_keep(operation: Operation) -> bool:
    if operation.name in ("stablehlo.reduce", "stablehlo.reduce_window"):
        folds = {inner.operation.name for inner in operation.regions[0].blocks[0].operations}
        return not folds <= _FOLDS_TO_OTHERS
    if operation.name == "stablehlo.multiply":
        return any(_is_one_number(x) for x in operation.operands)
    return operation.name in _MAY_KEEP


def _is_one_number(value: Value) -> bool:
    """Whether all elements are one number, a constant or an input: what `alpha=` becomes."""
    owner = value.owner
    while value.type.rank and not isinstance(owner, ir.Block) and owner.name in _SHAPES:
        value = owner.operands[0]
        owner = value.owner
    return not value.type.rank or (
        not isinstance(owner, ir.Block) and owner.name == "stablehlo.constant"
    )


def _maker(value: Value) -> Maker:
    return value if isinstance(value.owner, ir.Block) else value.owner.operation
