"""Arithmetic that is rounded as it is written: with PyTorch each operator rounds, whatever comes next.

XLA's simplifier knows rules that real numbers obey and floats do not. It makes `x / 3` a product,
`x / y / z` a quotient by `y * z`, which may be infinite, and `(x + 1e8) - 1e8` plain `x`. A barrier between
an operation and the operand that such a rule looks at keeps both as they are. XLA:CPU takes the barriers out
after it has simplified and before it fuses: loops stay whole.

What LLVM does is not undone: `x * y + z` may be rounded once, as a fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt_cpu.operations import Operation, Value, each_operation, is_inexact

_NO_OPERATION = frozenset(
    ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose")
)
_LIKE_ITS_OPERAND = _NO_OPERATION | {"stablehlo.abs", "stablehlo.negate"}
_POWERS = frozenset(("stablehlo.exponential", "stablehlo.power"))
_ROOTS = frozenset(("stablehlo.sqrt", "stablehlo.rsqrt"))
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))
_PRODUCTS = frozenset(("stablehlo.multiply",))
_NO_DIVISOR = frozenset(("stablehlo.divide",))


def hold(module: Any) -> None:
    """Put barriers into a StableHLO module, where XLA would round otherwise than it says."""
    for operation in list(each_operation(module.operation)):
        held = _HELD.get(operation.name)
        if held is None or not is_inexact(operation.results[0]):
            continue
        for position in held(operation):
            _hold_operand(operation, position)


def _hold_operand(operation: Operation, position: int) -> None:
    with ir.InsertionPoint(operation), operation.location:
        barrier = stablehlo.OptimizationBarrierOp([operation.operands[position]])
    operation.operands[position] = barrier.operation.results[0]


# Which operands are held, by operation.


def _of_quotient(operation: Operation) -> Iterator[int]:
    """The divisor, always: of a constant or a scalar XLA takes the inverse, of a root or a power another.

    The dividend where it is a quotient itself.
    """
    if _maker(operation, 0) in _NO_DIVISOR:
        yield 0
    yield 1


def _in_chains(names: frozenset[str]) -> Callable[[Operation], Iterator[int]]:
    """The operand that one of `names` makes with a number, where the other is a number, too."""

    def positions(operation: Operation) -> Iterator[int]:
        for position in (0, 1):
            chained = _made(operation.operands[position])
            if (
                chained is not None
                and chained.name in names
                and _is_number(operation.operands[1 - position])
                and any(_is_number(x) for x in chained.operands)
            ):
                yield position

    return positions


def _of_product(operation: Operation) -> Iterator[int]:
    """As in `x * 2 * 3`; and exp(x) * exp(y), sqrt(x) * sqrt(x), which may be infinite or nan."""
    yield from _in_chains(_PRODUCTS)(operation)
    makers = {_maker(operation, 0), _maker(operation, 1)}
    if makers <= _POWERS or makers <= _ROOTS:
        yield 0


def _made_by(names: frozenset[str]) -> Callable[[Operation], Iterator[int]]:
    def positions(operation: Operation) -> Iterator[int]:
        if _maker(operation, 0) in names:
            yield 0

    return positions


_HELD: dict[str, Callable[[Operation], Iterator[int]]] = {
    "stablehlo.add": _in_chains(_SUMS),
    "stablehlo.divide": _of_quotient,
    "stablehlo.log": _made_by(_POWERS | _ROOTS),
    "stablehlo.multiply": _of_product,
    "stablehlo.power": _made_by(_POWERS | _ROOTS),
    "stablehlo.rsqrt": _made_by(_POWERS | _PRODUCTS),
    "stablehlo.sqrt": _made_by(_POWERS | _PRODUCTS),
    "stablehlo.subtract": _in_chains(_SUMS),
}


def _maker(operation: Operation, position: int) -> str | None:
    """The name of the operation that makes an operand; None of an argument."""
    made = _made(operation.operands[position])
    return None if made is None else made.name


def _made(value: Value) -> Operation | None:
    """What makes a value, but for what XLA may take away: conversions there and back, other shapes, signs.

    Of a square it takes away `abs`.
    """
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _LIKE_ITS_OPERAND:
        owner = owner.operands[0].owner
    return None if isinstance(owner, ir.Block) else owner


def _is_number(value: Value) -> bool:
    """Whether all elements are one number, by all that its makers say: a constant or a scalar."""
    if not value.type.shape:
        return True
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    if owner.name == "stablehlo.constant":
        return True
    return owner.name in _LIKE_ITS_OPERAND and _is_number(owner.operands[0])
