"""Which dims of StableHLO operators go together: the rows by which `unflattening` follows a dim through one.

A row says of an operator's operands and results, dim by dim, which of them are one and the same, as the
letters of an einsum do; and how to write the operator's attributes when a dim has become several. Dims of a
result that no operand has are made by the operator, those of operands that no result has are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

Operation = Any
Letters = tuple[int | None, ...]  # one for each dim; None: the dim has to stay as it is
Groups = Sequence[Sequence[int]]  # of each dim, those that it has become


@dataclass(frozen=True, slots=True)
class Dims:
    """The letters of an operator's dims: equal ones go together."""

    operands: Sequence[Letters]
    results: Sequence[Letters]


@dataclass(frozen=True, slots=True)
class Kind:
    """An operator.

    dims    its letters; None: it is not followed.
    renumber   writes its attributes: of the operator that takes and makes the new dims, the groups of its
               operands and of its results. What it inserts goes before the operator, and may be one that
               takes its place, which it gives back.
    is_free    what it makes is as cheap to make again as to read.
    """

    dims: Callable[[Operation], Dims | None]
    renumber: Callable[[Operation, Sequence[Groups], Sequence[Groups]], Operation | None]
    is_free: bool = False


def _rank(value: Any) -> int:
    return len(value.type.shape)


def _among(dims: Iterable[int], groups: Groups) -> list[int]:
    return [new for d in dims for new in groups[d]]


def _listed(dims: Iterable[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(list(dims))


def _elementwise(op: Operation) -> Dims | None:
    """Scalars may stand for whole operands, as in `select` and `clamp`."""
    rank = _rank(op.results[0])
    if len(op.results) != 1 or not {_rank(x) for x in op.operands} <= {0, rank}:
        return None
    return Dims([tuple(range(_rank(x))) for x in op.operands], [tuple(range(rank))])


def _unchanged(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    pass


def _constant(op: Operation) -> Dims | None:
    value = op.attributes["value"]
    is_splat = isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return Dims([], [tuple(range(_rank(op.results[0])))]) if is_splat else None


def _renumber_constant(
    op: Operation, operands: Sequence[Groups], results: Sequence[Groups]
) -> None:
    number = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
    op.attributes["value"] = ir.DenseElementsAttr.get_splat(op.results[0].type, number)


def _iota(op: Operation) -> Dims:
    along = op.attributes["iota_dimension"].value
    return Dims([], [tuple(None if d == along else d for d in range(_rank(op.results[0])))])


def _renumber_iota(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    [along] = results[0][op.attributes["iota_dimension"].value]
    op.attributes["iota_dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), along)


def _broadcast(op: Operation) -> Dims:
    taken, made = op.operands[0].type.shape, op.results[0].type.shape
    targets = list(op.attributes["broadcast_dimensions"])
    of_operand = tuple(d if taken[i] == made[d] else None for i, d in enumerate(targets))
    return Dims([of_operand], [tuple(range(len(made)))])


def _renumber_broadcast(
    op: Operation, operands: Sequence[Groups], results: Sequence[Groups]
) -> None:
    """A dim of one element that becomes several is left out: from a `broadcast_in_dim` that makes dims before
    such a one XLA makes two operators, and the first, large already, may be what chips exchange.
    """
    taken = op.operands[0]
    rows = list(zip(op.attributes["broadcast_dimensions"], operands[0], strict=True))
    left_out = {new for d, of in rows for new in of if len(of) < len(results[0][d])}
    if left_out:
        kept = [n for d, n in enumerate(taken.type.shape) if d not in left_out]
        element = taken.type.element_type
        op.operands[0] = stablehlo.ReshapeOp(ir.RankedTensorType.get(kept, element), taken).result
    found = [new for d, of in rows if len(of) == len(results[0][d]) for new in results[0][d]]
    op.attributes["broadcast_dimensions"] = _listed(found)


def _transpose(op: Operation) -> Dims:
    order = tuple(op.attributes["permutation"])
    return Dims([tuple(range(len(order)))], [order])


def _renumber_transpose(
    op: Operation, operands: Sequence[Groups], results: Sequence[Groups]
) -> None:
    op.attributes["permutation"] = _listed(_among(op.attributes["permutation"], operands[0]))


def _reduce(op: Operation) -> Dims:
    n = len(op.results)
    letters = tuple(range(_rank(op.operands[0])))
    kept = tuple(d for d in letters if d not in set(op.attributes["dimensions"]))
    return Dims([*[letters] * n, *[()] * n], [kept] * n)


def _renumber_reduce(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    op.attributes["dimensions"] = _listed(_among(op.attributes["dimensions"], operands[0]))


def _dot(op: Operation) -> Dims:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    n_left, n_right = map(_rank, op.operands)
    left, right = list(range(n_left)), list(range(n_left, n_left + n_right))
    batch, of_right = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    summed = list(numbers.lhs_contracting_dimensions)
    summed_of_right = list(numbers.rhs_contracting_dimensions)
    for a, b in zip([*batch, *summed], [*of_right, *summed_of_right], strict=True):
        right[b] = a
    free = [d for d in left if d not in {*batch, *summed}]
    free += [a for d, a in enumerate(right) if d not in {*of_right, *summed_of_right}]
    return Dims([tuple(left), tuple(right)], [(*batch, *free)])


def _renumber_dot(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left, right = operands
    op.attributes["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
        _among(numbers.lhs_batching_dimensions, left),
        _among(numbers.rhs_batching_dimensions, right),
        _among(numbers.lhs_contracting_dimensions, left),
        _among(numbers.rhs_contracting_dimensions, right),
    )


def _dynamic_slice(op: Operation) -> Dims:
    """A dim that is taken as a whole starts at 0, whatever is said: a start is clamped."""
    whole = _whole(op.operands[0], op.results[0])
    return Dims([whole, *[()] * len(whole)], [whole])


def _whole(x: Any, part: Any) -> Letters:
    pairs = zip(x.type.shape, part.type.shape, strict=True)
    return tuple(d if n == m else None for d, (n, m) in enumerate(pairs))


def _renumber_dynamic_slice(
    op: Operation, operands: Sequence[Groups], results: Sequence[Groups]
) -> Operation:
    x, *starts = op.operands
    sizes = list(op.results[0].type.shape)
    new = stablehlo.DynamicSliceOp(x, _for_each(starts, operands[0]), _listed(sizes)).operation
    op.erase()
    return new


def _for_each(starts: Sequence[Any], groups: Groups) -> list[Any]:
    return [start for start, new in zip(starts, groups, strict=True) for _ in new]


def _dynamic_update_slice(op: Operation) -> Dims:
    whole = _whole(op.operands[0], op.operands[1])
    return Dims([whole, whole, *[()] * len(whole)], [whole])


def _renumber_dynamic_update_slice(
    op: Operation, operands: Sequence[Groups], results: Sequence[Groups]
) -> Operation:
    x, update, *starts = op.operands
    new = stablehlo.DynamicUpdateSliceOp(x, update, _for_each(starts, operands[0])).operation
    op.erase()
    return new


def _of_indices(rank: int, vector: int) -> Letters:
    return tuple(None if d == vector else d for d in range(rank))


def _along(rank: int, batching: Sequence[int], letters: Sequence[int]) -> Letters:
    of = dict(zip(batching, letters, strict=True))
    return tuple(of.get(d) for d in range(rank))


def _spaced(rank: int, windows: Sequence[int], indices: Letters) -> Letters:
    """Of what lies by indices: their letters in order, between the dims of the windows."""
    rest = iter([letter for letter in indices if letter is not None])
    return tuple(None if d in set(windows) else next(rest) for d in range(rank))


def _gather(op: Operation) -> Dims:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    indices = _of_indices(_rank(op.operands[1]), numbers.index_vector_dim)
    tied = list(numbers.operand_batching_dims), list(numbers.start_indices_batching_dims)
    return Dims(
        [_along(_rank(op.operands[0]), *tied), indices],
        [_spaced(_rank(op.results[0]), list(numbers.offset_dims), indices)],
    )


def _renumber_gather(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    of, indices = operands
    sizes = [n for n, new in zip(op.attributes["slice_sizes"], of, strict=True) for _ in new]
    op.attributes["slice_sizes"] = _listed(sizes)
    op.attributes["dimension_numbers"] = stablehlo.GatherDimensionNumbers.get(
        _among(numbers.offset_dims, results[0]),
        _among(numbers.collapsed_slice_dims, of),
        _among(numbers.operand_batching_dims, of),
        _among(numbers.start_indices_batching_dims, indices),
        _among(numbers.start_index_map, of),
        _vector_dim(numbers.index_vector_dim, indices),
    )


def _vector_dim(vector: int, indices: Groups) -> int:
    """One behind all dims stands for none."""
    return indices[vector][0] if vector < len(indices) else sum(map(len, indices))


def _scatter(op: Operation) -> Dims:
    n = len(op.results)
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    indices = _of_indices(_rank(op.operands[n]), numbers.index_vector_dim)
    tied = list(numbers.input_batching_dims), list(numbers.scatter_indices_batching_dims)
    into = _along(_rank(op.operands[0]), *tied)
    updates = _spaced(_rank(op.operands[n + 1]), list(numbers.update_window_dims), indices)
    return Dims([*[into] * n, indices, *[updates] * n], [into] * n)


def _renumber_scatter(op: Operation, operands: Sequence[Groups], results: Sequence[Groups]) -> None:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    into, indices, updates = operands[0], operands[len(op.results)], operands[-1]
    op.attributes["scatter_dimension_numbers"] = stablehlo.ScatterDimensionNumbers.get(
        _among(numbers.update_window_dims, updates),
        _among(numbers.inserted_window_dims, into),
        _among(numbers.input_batching_dims, into),
        _among(numbers.scatter_indices_batching_dims, indices),
        _among(numbers.scattered_dims_to_operand_dims, into),
        _vector_dim(numbers.index_vector_dim, indices),
    )


_ELEMENTWISE = """
    abs add and atan2 cbrt ceil clamp compare convert cosine divide exponential
    exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply
    negate not optimization_barrier or power reduce_precision remainder round_nearest_afz
    round_nearest_even rsqrt select shift_left shift_right_arithmetic shift_right_logical sign
    sine sqrt subtract tan tanh xor
"""
_ELEMENTWISE_OF_CHLO = """
    acos acosh asin asinh atan atanh cosh digamma erf erf_inv erfc is_inf is_neg_inf is_pos_inf
    lgamma next_after polygamma sinh square tan zeta
"""

KINDS: dict[str, Kind] = {
    **{f"stablehlo.{name}": Kind(_elementwise, _unchanged) for name in _ELEMENTWISE.split()},
    **{f"chlo.{name}": Kind(_elementwise, _unchanged) for name in _ELEMENTWISE_OF_CHLO.split()},
    "stablehlo.broadcast_in_dim": Kind(_broadcast, _renumber_broadcast, is_free=True),
    "stablehlo.constant": Kind(_constant, _renumber_constant, is_free=True),
    "stablehlo.dot_general": Kind(_dot, _renumber_dot),
    "stablehlo.dynamic_slice": Kind(_dynamic_slice, _renumber_dynamic_slice),
    "stablehlo.dynamic_update_slice": Kind(_dynamic_update_slice, _renumber_dynamic_update_slice),
    "stablehlo.gather": Kind(_gather, _renumber_gather),
    "stablehlo.iota": Kind(_iota, _renumber_iota, is_free=True),
    "stablehlo.reduce": Kind(_reduce, _renumber_reduce),
    "stablehlo.scatter": Kind(_scatter, _renumber_scatter),
    "stablehlo.transpose": Kind(_transpose, _renumber_transpose),
}
