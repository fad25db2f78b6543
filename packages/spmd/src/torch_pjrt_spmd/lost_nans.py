"""Maxima and minima of floats over several chips, written so that a NaN is not lost.

Of what chips have each computed, XLA's collectives on CPUs keep the larger by a comparison, and NCCL's, on
GPUs, by `fmaxf`: a NaN goes, though StableHLO says that it stays. So floats become integers that have their
order, and of which a NaN is the largest for a maximum, the least for a minimum. As of jaxlib 0.10.

before  y = reduce maximum(x)          after  y = floats(reduce maximum(integers(x)))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt.plugin import each_operation

# What becomes of them is of no interest to a checker: MLIR's bindings have no annotations.
Operation = Any
Value = Any

_LARGEST, _SMALLEST = "stablehlo.maximum", "stablehlo.minimum"
# The platforms whose collectives keep NaNs.
_KEEP = ("tpu",)


def keep_nans(module: Any, platform: str) -> None:
    """Change a program for several chips so that its maxima and minima have the NaNs of all of them."""
    if platform in _KEEP:
        return
    for operation in list(each_operation(module.operation)):
        positions = _floats_of(operation)
        if positions:
            _in_integers(operation, positions)


def _floats_of(operation: Operation) -> Sequence[int]:
    """The operands that it reduces by the larger or the smaller of two; none, if it does something else."""
    n = len(operation.operands)
    if operation.name == "stablehlo.scatter":
        positions = [i for i in range(n) if i != (n - 1) // 2]  # not the indices
    elif operation.name in (
        "stablehlo.reduce",
        "stablehlo.all_reduce",
        "stablehlo.reduce_scatter",
    ):
        positions = list(range(n))
    else:
        return ()
    first, *rest = [inner.operation for inner in operation.regions[0].blocks[0].operations]
    is_one = len(rest) == 1 and first.name in (_LARGEST, _SMALLEST)
    # Of several operands at once there would be as many of them.
    is_float = is_one and isinstance(first.results[0].type.element_type, ir.FloatType)
    return positions if is_float else ()


def _in_integers(operation: Operation, positions: Sequence[int]) -> None:
    block = operation.regions[0].blocks[0]
    inner = block.operations[0].operation
    floats = inner.results[0].type.element_type
    width = 64 if floats.width == 64 else 32
    is_largest = inner.name == _LARGEST
    with ir.InsertionPoint(operation), operation.location:
        for i in positions:
            operation.operands[i] = _integers(operation.operands[i], width, is_largest)
        integer = ir.IntegerType.get_signless(width)
        for value in (*block.arguments, *inner.results, *operation.results):
            value.set_type(_type(value, integer))
    for result in operation.results:
        readers = [(use.owner, use.operand_number) for use in result.uses]
        with ir.InsertionPoint.after(operation), operation.location:
            back = _floats(result, floats, width)
        for reader, i in readers:
            reader.operation.operands[i] = back


def _integers(x: Value, width: int, is_largest: bool) -> Value:
    """Integers in the order of floats: as their bits are, those of negative numbers turned around."""
    wide = _wide(width)
    if x.type.element_type != wide:
        x = stablehlo.ConvertOp(_type(x, wide), x).result
    bits = stablehlo.BitcastConvertOp(_type(x, ir.IntegerType.get_signless(width)), x).result
    most = (1 << width - 1) - 1
    nan = _filled(bits, most if is_largest else -most - 1)
    is_nan = stablehlo.CompareOp(x, x, stablehlo.ComparisonDirectionAttr.get("NE")).result
    return stablehlo.SelectOp(is_nan, nan, _turned(bits, width)).result


def _floats(bits: Value, floats: Any, width: int) -> Value:
    """What `_integers` has been given; of a NaN's integers, a NaN."""
    wide = _wide(width)
    x = stablehlo.BitcastConvertOp(_type(bits, wide), _turned(bits, width)).result
    return x if floats == wide else stablehlo.ConvertOp(_type(x, floats), x).result


def _turned(bits: Value, width: int) -> Value:
    sign = stablehlo.ShiftRightArithmeticOp(bits, _filled(bits, width - 1)).result
    return stablehlo.XorOp(
        bits, stablehlo.AndOp(sign, _filled(bits, (1 << width - 1) - 1)).result
    ).result


def _wide(width: int) -> Any:
    return ir.F64Type.get() if width == 64 else ir.F32Type.get()


def _filled(like: Value, number: int) -> Value:
    element = like.type.element_type
    splat = ir.DenseElementsAttr.get_splat(like.type, ir.IntegerAttr.get(element, number))
    return stablehlo.ConstantOp(splat).result


def _type(value: Value, element: Any) -> Any:
    return ir.RankedTensorType.get(value.type.shape, element)
