"""Products of matrices in the form for which XLA:CPU has fast code.

Measured with JAX 0.10 (`benchmarks/cpu_products.py`), for weights as `nn.Linear` has them, which a product
reads transposed:

- Products of bfloat16 are fast if the result is float32 and the second factor is not transposed first: any
  dim of it may be contracted. The result is rounded to bfloat16 behind it, once, as PyTorch does.
- Whether it computes such a product of bfloat16 with float32 as result, XLA decides before it chooses
  layouts; where it then lays out the first factor transposed, the program fails when it runs ("Unsupported
  element type for DotThunk::Execute: BF16 x BF16 = F32"). So that factor is laid out by rows.
- A transposed matrix by one row is copied first from 4,096 columns on, which takes thirty times as long as
  the product. In float32 it is contracted as it lies; in bfloat16 two rows are faster than one.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt_cpu.operations import Operation, Value, each_operation

# From more on, XLA copies a transposed matrix before it multiplies it by one row.
_MOST_READ_AS_TRANSPOSED = 2048
# What else a product says.
_STAY = ("precision_config", "algorithm")


def reshape_products(module: Any) -> None:
    """Rewrite the products of a StableHLO module that XLA would compute slowly, or not at all."""
    for operation in list(each_operation(module.operation)):
        if operation.name == "stablehlo.dot_general":
            with module.context:
                _reshape(operation)


def _reshape(dot: Operation) -> None:
    rows, matrix = dot.operands
    kind = rows.type.element_type
    is_half = isinstance(kind, ir.BF16Type)
    if matrix.type.element_type != kind or not (is_half or isinstance(kind, ir.F32Type)):
        return
    if not _is_plain(dot):
        if is_half:
            _replace(dot, rows, matrix, dot.attributes["dot_dimension_numbers"])
        return
    n_rows, n_contracted = rows.type.shape
    untransposed = _untransposed(matrix)
    if n_rows == 1 and is_half:
        if untransposed is not None and n_contracted <= _MOST_READ_AS_TRANSPOSED:
            untransposed = None
        else:
            rows = _twice(dot, rows)
    elif not is_half and (n_rows > 1 or untransposed is None):
        return
    if untransposed is None:
        _replace(dot, rows, matrix, dot.attributes["dot_dimension_numbers"])
    else:
        _replace(dot, rows, untransposed, stablehlo.DotDimensionNumbers.get([], [], [1], [1]))


def _is_plain(dot: Operation) -> bool:
    """Whether it is (rows, n) by (n, columns)."""
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    return (
        all(x.type.rank == 2 for x in dot.operands)
        and list(numbers.lhs_contracting_dimensions) == [1]
        and list(numbers.rhs_contracting_dimensions) == [0]
    )


def _untransposed(matrix: Value) -> Value | None:
    """What a matrix is the transpose of."""
    owner = matrix.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.transpose":
        return None
    return owner.operands[0]


def _twice(dot: Operation, row: Value) -> Value:
    with ir.InsertionPoint(dot), dot.location:
        of_two = ir.RankedTensorType.get([2, row.type.shape[1]], row.type.element_type)
        return stablehlo.BroadcastInDimOp(of_two, row, [0, 1]).result


def _laid_out(rows: Value, matrix: Value) -> tuple[Value, Value]:
    """Factors of bfloat16 such that XLA's choice of layouts does not make their product impossible.

    It contracts a transposed one as it lies, in float32: that is said here, for it changes its mind, too.
    """
    if _swaps_last_dims(rows):
        return _as_float32(rows), _as_float32(matrix)
    return _by_rows(rows), matrix


def _swaps_last_dims(value: Value) -> bool:
    if _untransposed(value) is None:
        return False
    *others, row, column = range(value.type.rank)
    return list(value.owner.attributes["permutation"]) == [*others, column, row]


def _as_float32(value: Value) -> Value:
    wide = ir.RankedTensorType.get(value.type.shape, ir.F32Type.get())
    return stablehlo.ConvertOp(wide, value).result


def _by_rows(value: Value) -> Value:
    """The same value, with its last dim contiguous."""
    dims = list(reversed(range(value.type.rank)))
    order = ir.Attribute.parse(f"dense<{dims}> : tensor<{len(dims)}xindex>")
    layouts = ir.ArrayAttr.get([order])
    return stablehlo.CustomCallOp(
        [value.type],
        [value],
        "LayoutConstraint",
        operand_layouts=layouts,
        result_layouts=layouts,
    ).result


def _replace(dot: Operation, rows: Value, matrix: Value, numbers: Any) -> None:
    """By a product of these whose result is float32, of which the first row is kept if there are more."""
    old = dot.results[0].type
    shape = list(old.shape)
    is_twice = rows.type.shape != dot.operands[0].type.shape
    attributes = {n: dot.attributes[n] for n in _STAY if n in dot.attributes}
    attributes["dot_dimension_numbers"] = numbers
    with ir.InsertionPoint(dot), dot.location:
        is_half = isinstance(old.element_type, ir.BF16Type)
        if isinstance(rows.type.element_type, ir.BF16Type):
            rows, matrix = _laid_out(rows, matrix)
        wide = ir.F32Type.get() if is_half else old.element_type
        result = ir.RankedTensorType.get([2, shape[1]] if is_twice else shape, wide)
        value = ir.Operation.create(
            "stablehlo.dot_general", [result], [rows, matrix], attributes
        ).results[0]
        if is_twice:
            value = stablehlo.SliceOp(value, [0, 0], [1, shape[1]], [1, 1]).result
        if is_half:
            value = stablehlo.ConvertOp(old, value).result
    dot.results[0].replace_all_uses_with(value)
    dot.erase()
