"""What an equation of a JAX program does with dims: a row for each of JAX's primitives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

Place = tuple[int, int]  # of an operand (0, 1, ...) or a result (-1, -2, ...) the dim
Shape = tuple[int, ...]


@dataclass(slots=True)
class Row:
    """What an equation does with dims.

    links    places that are one letter. free: places of results that it makes, each chip its own part.
    summed   places of operands that it folds: what chips have of them is added up afterwards.
    lookups  places of operands of which it reads single entries: chips that have others give zeros, and the
             results are added up.
    reshape  whether the elements of operand 0 and result 0 are the same, in order.
    moved    places that are cut in another way than before: chips pass on parts.
    multiplications   of matrix products and convolutions: pairs of a multiplication and an addition.
    """

    links: list[tuple[Place, ...]] = field(default_factory=list)
    free: list[Place] = field(default_factory=list)
    summed: list[Place] = field(default_factory=list)
    lookups: list[Place] = field(default_factory=list)
    reshape: bool = False
    moved: list[tuple[Place, Place]] = field(default_factory=list)
    multiplications: int = 0
    heavy: bool = False


def _shape(v: Any) -> Shape:
    return tuple(v.aval.shape)


def _elementwise(e: Any) -> Row:
    out = _shape(e.outvars[0])
    of_results = [-i - 1 for i in range(len(e.outvars))]
    operands = [(i, _shape(v)) for i, v in enumerate(e.invars) if len(_shape(v)) == len(out)]
    return Row(  # a dim of one element may stand for one of several
        [
            (
                *((i, d) for i, shape in operands if shape[d] == out[d]),
                *((n, d) for n in of_results),
            )
            for d in range(len(out))
        ]
    )


def _broadcast(e: Any) -> Row:
    taken, made = _shape(e.invars[0]), _shape(e.outvars[0])
    where = e.params["broadcast_dimensions"]
    links = [((0, i), (-1, d)) for i, d in enumerate(where) if taken[i] == made[d]]
    linked = {place[1] for _, place in links}
    return Row(links, [(-1, d) for d in range(len(made)) if d not in linked])


def _transpose(e: Any) -> Row:
    return Row([((0, old), (-1, new)) for new, old in enumerate(e.params["permutation"])])


def _reshape(e: Any) -> Row:
    return Row(reshape=True)


def _reduce(e: Any) -> Row:
    folded = e.params["axes"] if "axes" in e.params else e.params["dimensions"]
    shape, axes = _shape(e.invars[0]), set(folded)
    kept = [d for d in range(len(shape)) if d not in axes]
    n = len(e.outvars)
    row = Row(
        [
            (*((k, d) for k in range(n)), *((-k - 1, i) for k in range(n)))
            for i, d in enumerate(kept)
        ]
    )
    row.links += [tuple((k, d) for k in range(n)) for d in axes if n > 1]
    row.summed = [(0, d) for d in axes]
    return row


def _dot(e: Any) -> Row:
    (of_left, of_right), (batch_left, batch_right) = e.params["dimension_numbers"]
    left, right = _shape(e.invars[0]), _shape(e.invars[1])
    links: list[tuple[Place, ...]] = []
    at = 0
    for a, b in zip(batch_left, batch_right, strict=True):
        links.append(((0, a), (1, b), (-1, at)))
        at += 1
    for n, shape, used in (
        (0, left, {*of_left, *batch_left}),
        (1, right, {*of_right, *batch_right}),
    ):
        for d in range(len(shape)):
            if d not in used:
                links.append(((n, d), (-1, at)))
                at += 1
    links += [((0, a), (1, b)) for a, b in zip(of_left, of_right, strict=True)]
    n_summed = prod(left[d] for d in of_left)
    n_made = prod(_shape(e.outvars[0]))
    return Row(
        links, summed=[(0, d) for d in of_left], multiplications=n_made * n_summed, heavy=True
    )


def _convolution(e: Any) -> Row:
    numbers = e.params["dimension_numbers"]
    groups, batch_groups = e.params["feature_group_count"], e.params["batch_group_count"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    row = Row(heavy=True)
    if batch_groups == 1:
        row.links.append(((0, lhs[0]), (-1, out[0])))
    if groups == 1:
        row.links.append(((0, lhs[1]), (1, rhs[1])))
        row.summed.append((0, lhs[1]))
        if batch_groups == 1:
            row.links.append(((1, rhs[0]), (-1, out[1])))
    kernel = _shape(e.invars[1])
    per_output = prod(kernel[d] for d in rhs[1:])
    # A dilated input, in gradients of strided convolutions, is zeros but for one in so many.
    zeros = prod(e.params["lhs_dilation"])
    row.multiplications = prod(_shape(e.outvars[0])) * per_output // max(zeros, 1)
    return row


def _cut_along(e: Any) -> Row:
    """A slice or a padding: dims that stay whole go on; others are cut in another way."""
    taken, made = _shape(e.invars[0]), _shape(e.outvars[0])
    row = Row([((0, d), (-1, d)) for d in range(len(made)) if taken[d] == made[d]])
    if e.primitive.name == "slice":
        row.moved = [((0, d), (-1, d)) for d in range(len(made)) if taken[d] != made[d]]
    return row


def _concatenate(e: Any) -> Row:
    out = _shape(e.outvars[0])
    along = e.params["dimension"]
    operands = range(len(e.invars))
    return Row([(*((k, d) for k in operands), (-1, d)) for d in range(len(out)) if d != along])


def _all_but(e: Any, whole: set[int]) -> Row:
    out = _shape(e.outvars[0])
    of_results = [-i - 1 for i, v in enumerate(e.outvars) if len(_shape(v)) == len(out)]
    operands = [i for i, v in enumerate(e.invars) if len(_shape(v)) == len(out)]
    return Row(
        [tuple((n, d) for n in (*operands, *of_results)) for d in range(len(out)) if d not in whole]
    )


def _rev(e: Any) -> Row:
    return _all_but(e, set(e.params["dimensions"]))


def _cumulative(e: Any) -> Row:
    return _all_but(e, {e.params["axis"]})


def _sort(e: Any) -> Row:
    return _all_but(e, {e.params["dimension"]})


def _top_k(e: Any) -> Row:
    return _all_but(e, {len(_shape(e.invars[0])) - 1})


def _arg(e: Any) -> Row:
    shape, axes = _shape(e.invars[0]), set(e.params["axes"])
    kept = [d for d in range(len(shape)) if d not in axes]
    return Row([((0, d), (-1, i)) for i, d in enumerate(kept)], summed=[(0, d) for d in axes])


def _made_anew(e: Any) -> Row:
    return Row(free=[(-1, d) for d in range(len(_shape(e.outvars[0])))])


def _squeeze(e: Any) -> Row:
    dropped = {d % max(len(_shape(e.invars[0])), 1) for d in e.params["dimensions"]}
    kept = [d for d in range(len(_shape(e.invars[0]))) if d not in dropped]
    return Row([((0, d), (-1, i)) for i, d in enumerate(kept)])


def _gather(e: Any) -> Row:
    numbers, sizes = e.params["dimension_numbers"], e.params["slice_sizes"]
    of, indices, out = _shape(e.invars[0]), _shape(e.invars[1]), _shape(e.outvars[0])
    row = Row(heavy=True)
    by_index = [d for d in range(len(out)) if d not in set(numbers.offset_dims)]
    for d, at in zip(range(len(indices) - 1), by_index, strict=True):
        link: list[Place] = [(1, d), (-1, at)]
        if d in numbers.start_indices_batching_dims:
            i = list(numbers.start_indices_batching_dims).index(d)
            link.append((0, numbers.operand_batching_dims[i]))
        row.links.append(tuple(link))
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(of)) if d not in gone]
    for d, at in zip(kept, numbers.offset_dims, strict=True):
        if sizes[d] == of[d]:
            row.links.append(((0, d), (-1, at)))
    row.lookups = [
        (0, d) for d in numbers.start_index_map if d in set(numbers.collapsed_slice_dims)
    ]
    return row


def _scatter(e: Any) -> Row:
    numbers = e.params["dimension_numbers"]
    into, indices, updates = (_shape(v) for v in e.invars[:3])
    row = Row(heavy=True)
    by_index = [d for d in range(len(updates)) if d not in set(numbers.update_window_dims)]
    tied = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    is_sum = e.primitive.name in ("scatter-add", "scatter_add")
    for d, at in zip(range(len(indices) - 1), by_index, strict=True):
        link: list[Place] = [(1, d), (2, at)]
        if d in tied:
            link += [(0, tied[d]), (-1, tied[d])]
        elif is_sum:
            row.summed.append((2, at))
        else:
            continue
        row.links.append(tuple(link))
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [d for d in range(len(into)) if d not in gone]
    for d, at in zip(kept, numbers.update_window_dims, strict=True):
        if updates[at] == into[d]:
            row.links.append(((0, d), (2, at), (-1, d)))
    for d in numbers.scatter_dims_to_operand_dims:
        if d in set(numbers.inserted_window_dims):  # each chip takes what falls to its part
            row.links.append(((0, d), (-1, d)))
    return row


def _dynamic_slice(e: Any) -> Row:
    taken, made = _shape(e.invars[0]), _shape(e.outvars[0])
    return Row([((0, d), (-1, d)) for d in range(len(made)) if taken[d] == made[d]])


def _dynamic_update_slice(e: Any) -> Row:
    into, new = _shape(e.invars[0]), _shape(e.invars[1])
    whole = [d for d in range(len(into)) if into[d] == new[d]]
    return Row([((0, d), (1, d), (-1, d)) for d in whole])


def _windows(e: Any) -> Row:
    sizes = e.params["window_dimensions"]
    return _all_but(e, {d for d, n in enumerate(sizes) if n != 1})


def _random(e: Any) -> Row:
    return Row(free=[(-k - 1, d) for k, v in enumerate(e.outvars) for d in range(len(_shape(v)))])


_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp conj
    convert_element_type copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    igamma igammac imag integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter
    not or polygamma population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt
    select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient
    sub tan tanh xor zeta clz complex bitcast_convert_type device_put sharding_constraint
"""

RULES: dict[str, Callable[[Any], Row]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "reduce": _reduce,
    "expand_dims": _reshape,
    **dict.fromkeys(
        (
            "reduce_sum",
            "reduce_max",
            "reduce_min",
            "reduce_prod",
            "reduce_and",
            "reduce_or",
            "reduce_xor",
        ),
        _reduce,
    ),
    "argmax": _arg,
    "argmin": _arg,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "slice": _cut_along,
    "pad": _cut_along,
    "concatenate": _concatenate,
    "rev": _rev,
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulative),
    "sort": _sort,
    "top_k": _top_k,
    "iota": _made_anew,
    "gather": _gather,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter-min", "scatter-max"),
        _scatter,
    ),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    **dict.fromkeys(
        ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _windows
    ),
    "select_and_scatter_add": _windows,
    "select_and_gather_add": _windows,
    **dict.fromkeys(
        ("random_bits", "random_seed", "random_wrap", "random_unwrap", "random_fold_in"), _random
    ),
    "threefry2x32": _elementwise,
}


def optimization_barrier(e: Any) -> Row:
    """Each result is its operand."""
    return Row(
        [((i, d), (-i - 1, d)) for i, v in enumerate(e.invars) for d in range(len(_shape(v)))]
    )


RULES["optimization_barrier"] = optimization_barrier


def each_place(row: Row) -> Iterator[Place]:
    """Those that the row speaks of."""
    for link in row.links:
        yield from link
    yield from row.free
    yield from row.lookups
    yield from row.summed
    for pair in row.moved:
        yield from pair
