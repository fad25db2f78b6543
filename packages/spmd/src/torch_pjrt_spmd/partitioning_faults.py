"""What XLA's partitioner computes wrongly, written so that it does not. As of XLA in jaxlib 0.10.

**A scatter that adds up, whose indices chips do not divide.** Each chip's part of the indices is padded with
zeros, and what is in the padding of the updates is added to element 0. So both are padded here, with indices
that are out of range.

**Windows over one array with different values around it.** What chips exchange for a window is kept by the
array and the window, without the value that is put around the array: of a sum and a maximum over the same
windows, the second has the zeros of the first. So each gets an array of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from torch_pjrt.plugin import each_operation

# What becomes of them is of no interest to a checker: MLIR's bindings have no annotations.
Operation = Any
Value = Any

_WINDOWED = ("stablehlo.reduce_window", "stablehlo.select_and_scatter", "stablehlo.convolution")


def avoid(module: Any, n_chips: int) -> None:
    """Change a program for so many chips so that the partitioner gives what it says."""
    scatters, windowed = [], []
    for operation in each_operation(module.operation):
        if operation.name == "stablehlo.scatter" and _combines(operation):
            scatters.append(operation)
        elif operation.name in _WINDOWED:
            windowed.append(operation)
    for operation in scatters:
        _pad(operation, n_chips)
    _part(windowed)


def _combines(scatter: Operation) -> bool:
    """Whether it does something with what was there: its region is more than `return update`."""
    return len(list(scatter.regions[0].blocks[0].operations)) > 1


def _pad(scatter: Operation, n_chips: int) -> None:
    """Have the dims along which there are several indices be ones that any number of the chips divides."""
    numbers = stablehlo.ScatterDimensionNumbers(scatter.attributes["scatter_dimension_numbers"])
    n = (len(scatter.operands) - 1) // 2
    indices, updates = scatter.operands[n], list(scatter.operands)[n + 1 :]
    shape = indices.type.shape
    dims = [d for d in range(len(shape)) if d != numbers.index_vector_dim]
    of_updates = [d for d in range(updates[0].type.rank) if d not in numbers.update_window_dims]
    fixed = set(numbers.scatter_indices_batching_dims)
    more = {d: -shape[d] % n_chips for d in dims if d not in fixed}
    if not any(more.values()):
        return
    with ir.InsertionPoint(scatter), scatter.location:
        element = ir.IntegerType(indices.type.element_type)
        if element.width < 32:
            element = ir.IntegerType.get_signless(32)
            indices = stablehlo.ConvertOp(ir.RankedTensorType.get(shape, element), indices).result
        most = (1 << element.width) - 1 if element.is_unsigned else (1 << element.width - 1) - 1
        out_of_range = _constant(element, ir.IntegerAttr.get(element, most))
        scatter.operands[n] = _padded(indices, out_of_range, more)
        for i, update in enumerate(updates):
            pairs = zip(dims, of_updates, strict=True)
            along = {there: more[d] for d, there in pairs if d in more}
            scatter.operands[n + 1 + i] = _padded(update, _zero(update.type.element_type), along)


def _padded(x: Value, value: Value, more: dict[int, int]) -> Value:
    nothing = [0] * x.type.rank
    after = [more.get(d, 0) for d in range(x.type.rank)]
    return stablehlo.PadOp(
        x,
        value,
        ir.DenseI64ArrayAttr.get(nothing),
        ir.DenseI64ArrayAttr.get(after),
        ir.DenseI64ArrayAttr.get(nothing),
    ).result


def _constant(element: Any, number: Any) -> Value:
    scalar = ir.RankedTensorType.get([], element)
    return stablehlo.ConstantOp(ir.DenseElementsAttr.get_splat(scalar, number)).result


def _zero(element: Any) -> Value:
    """A zero of any dtype, complex numbers included."""
    zero = _constant(
        ir.IntegerType.get_signless(8), ir.IntegerAttr.get(ir.IntegerType.get_signless(8), 0)
    )
    return stablehlo.ConvertOp(ir.RankedTensorType.get([], element), zero).result


def _part(windowed: list[Operation]) -> None:
    """Have arrays that lie alike, which windows with different values around them go over, be others."""
    groups: defaultdict[Any, list[tuple[Operation, int, str]]] = defaultdict(list)
    for operation in windowed:
        for position, around in _windowed_operands(operation):
            looks = str(operation.operands[position].type)
            groups[looks].append((operation, position, around))
    number = 0
    for uses in groups.values():
        if len({around for *_, around in uses}) < 2:
            continue
        for operation, position, _ in uses:
            number += 1
            operation.operands[position] = _another(operation, operation.operands[position], number)


def _windowed_operands(operation: Operation) -> Iterator[tuple[int, str]]:
    """The positions of what its window goes over, and what is around that."""
    if operation.name == "stablehlo.reduce_window":
        n = len(operation.operands) // 2
        for i in range(n):
            yield i, _written(operation.operands[n + i])
    else:
        yield 0, _written(operation.operands[2]) if len(operation.operands) > 2 else "0"


def _written(value: Value) -> str:
    """A constant's number; another value's name."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name == "stablehlo.broadcast_in_dim":
        owner = owner.operands[0].owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return value.get_name()
    return str(owner.attributes["value"])


def _another(operation: Operation, x: Value, number: int) -> Value:
    """The same array; XLA does not see that it is, and finds no other that is made like this."""
    with ir.InsertionPoint(operation), operation.location:
        integer = ir.IntegerType.get_signless(32)
        mark = _constant(integer, ir.IntegerAttr.get(integer, number))
        return stablehlo.OptimizationBarrierOp([x, mark]).results[0]
