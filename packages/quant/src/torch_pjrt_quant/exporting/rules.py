"""Rules for what needs symbolic sizes, or is drawn, in an exported program."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import torch
from jax import core, lax
from jax.extend.core import InconclusiveDimensionOperation

from torch_pjrt.errors import LoweringError
from torch_pjrt.plugin import aten
from torch_pjrt_quant.exporting.rule_table import (
    RANDOM,
    Array,
    ResultSpec,
    is_,
    number_of,
    rule,
    within,
)


@rule(
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
)
def arange(out: ResultSpec, *bounds: Any, **kwargs: Any) -> Array:
    """`start + step * n`, computed in the widest dtype of its kind."""
    start = bounds[0] if len(bounds) > 1 else 0
    step = bounds[2] if len(bounds) > 2 else kwargs.get("step", 1)
    if jnp.issubdtype(out.dtype, jnp.floating):
        positions = lax.iota(jnp.float64, out.shape[0])
    else:
        positions = lax.iota(jnp.int64, out.shape[0])
    return (number_of(start) + positions * number_of(step)).astype(out.dtype)


@rule(aten.where.self)
def where(out: ResultSpec, condition: Array, x: Any, y: Any) -> Array:
    return jnp.where(condition, jnp.asarray(x, out.dtype), jnp.asarray(y, out.dtype))


@rule(
    aten.full.default,
    aten.new_full.default,
    aten.full_like.default,
)
def full(out: ResultSpec, first: Any, *rest: Any, fill_value: Any = None, **_: Any) -> Array:
    value = rest[-1] if rest else fill_value
    return jnp.broadcast_to(jnp.asarray(number_of(value)).astype(out.dtype), out.shape)


@rule(
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_permuted.default,
)
def zeros(out: ResultSpec, *_: Any, **__: Any) -> Array:
    return jnp.zeros(out.shape, out.dtype)


@rule(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(out: ResultSpec, *_: Any, **__: Any) -> Array:
    return jnp.ones(out.shape, out.dtype)


@rule(aten.scalar_tensor.default)
def scalar_tensor(out: ResultSpec, value: Any, **_: Any) -> Array:
    return jnp.asarray(number_of(value)).astype(out.dtype)


@rule(aten.eye.m)
def eye(out: ResultSpec, n: Any, m: Any, **_: Any) -> Array:
    rows = lax.broadcasted_iota(jnp.int32, out.shape, 0)
    return (rows == lax.broadcasted_iota(jnp.int32, out.shape, 1)).astype(out.dtype)


@rule(aten.repeat.default)
def repeat(out: ResultSpec, x: Array, repeats: Sequence[Any]) -> Array:
    """Each dim as (repeats, size), which one reshape joins."""
    x = lax.reshape(x, (1,) * (len(repeats) - x.ndim) + x.shape)
    pairs = [s for r, n in zip(repeats, x.shape, strict=True) for s in (r, n)]
    between = lax.expand_dims(x, range(0, 2 * x.ndim, 2))
    return lax.reshape(jnp.broadcast_to(between, pairs), out.shape)


@rule(aten.index.Tensor)
def index(out: ResultSpec, x: Array, indices: Sequence[Array | None]) -> Array:
    """NumPy's indexing with arrays of integers. An index out of range gives the nearest element."""
    _no_masks(indices)
    return x[_selection(indices)]


@rule(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    out: ResultSpec,
    x: Array,
    indices: Sequence[Array | None],
    values: Array,
    accumulate: bool = False,
) -> Array:
    values = values.astype(x.dtype)
    masks = [i for i in indices if _is_mask(i)]
    if masks and len(indices) == 1 and values.size == 1 and not accumulate:
        mask = lax.reshape(masks[0], (*masks[0].shape, *[1] * (x.ndim - masks[0].ndim)))
        return jnp.where(mask, lax.reshape(values, ()), x)
    there = x.at[_selection(_numbered(x, indices, values) if masks else indices)]
    return there.add(values) if accumulate else there.set(values)


def _is_mask(index: Array | None) -> TypeGuard[Array]:
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8)


def _numbered(x: Array, indices: Sequence[Array | None], values: Array) -> list[Array | None]:
    """Indices with the positions where a mask is True instead of the mask.

    How many there are is said by the size of `values`, or else of the other indices. Where neither has
    one, there are as many as the mask has elements: those that are too many lie outside of `x`, where nothing
    is written.
    """
    spans = [i.ndim if _is_mask(i) else 1 for i in indices]
    given = [n for n, i in enumerate(indices) if i is not None]
    together = given == list(range(given[0], given[-1] + 1))
    behind = x.ndim - sum(spans[: given[-1] + 1])
    if not together:
        behind = x.ndim - sum(spans[n] for n in given)
    known = [i.shape[-1] for i in indices if i is not None and not _is_mask(i) and i.ndim]
    if values.ndim > behind:
        known.append(values.shape[values.ndim - 1 - behind])
    known = [n for n in known if not is_(n, 1)]
    result: list[Array | None] = []
    for index, dim in zip(indices, itertools.accumulate([0, *spans]), strict=False):
        if not _is_mask(index):
            result.append(index)
            continue
        outside = x.shape[dim : dim + index.ndim]
        count = known[0] if known else index.size
        one = jnp.sum(index != 0) == 1  # which goes with each of the others
        for positions in jnp.nonzero(index, size=count, fill_value=tuple(map(number_of, outside))):
            result.append(jnp.where(one, positions[:1], positions) if known else positions)
    return result


@rule(aten._unsafe_index.Tensor)
def unsafe_index(out: ResultSpec, x: Array, indices: Sequence[Array | None]) -> Array:
    return index(out, x, indices)


def _selection(indices: Sequence[Array | None]) -> tuple[Any, ...]:
    return tuple(slice(None) if i is None else i for i in indices)


def _no_masks(indices: Sequence[Array | None]) -> None:
    if any(map(_is_mask, indices)):
        raise LoweringError(
            "`x[mask]` has as many elements as the mask has True: a size that only values decide.",
            hint="use `torch.where(mask, x, 0)`, or export the part around it (docs/export.md)",
        )


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(out: ResultSpec, x: Array, mask: Array, value: Any) -> Array:
    filled = jnp.where(mask, jnp.asarray(number_of(value)).astype(out.dtype), x.astype(out.dtype))
    return jnp.broadcast_to(filled, out.shape)


@rule(aten.sort.default, aten.sort.stable)
def sort(
    out: Sequence[ResultSpec],
    x: Array,
    *args: Any,
    stable: Any = None,
    dim: int = -1,
    descending: Any = False,
) -> tuple[Array, Array]:
    """A stable sort, which is a sort of any kind; NaNs are the greatest."""
    dims = [a for a in args if a is not None]
    if dims and isinstance(dims[0], int) and not isinstance(dims[0], bool):
        dim, *rest = dims
        descending = rest[0] if rest else descending
    positions = (
        lax.broadcasted_iota(jnp.int64, x.shape, dim % max(x.ndim, 1))
        if x.ndim
        else jnp.zeros((), jnp.int64)
    )
    if not x.ndim:
        return x, positions
    # Descending and stable: the order of the reversed array, reversed.
    turned = [lax.rev(a, [dim % x.ndim]) if descending else a for a in (x, positions)]
    values, order = lax.sort(turned, dimension=dim % x.ndim, is_stable=True, num_keys=1)
    if descending:
        values, order = (lax.rev(a, [dim % x.ndim]) for a in (values, order))
    return values, order


@rule(aten._trilinear.default)
def trilinear(
    out: ResultSpec,
    one: Array,
    two: Array,
    three: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    """Three tensors multiplied and summed; each lacks the dims of all that it is expanded in."""
    n_dims = one.ndim + len(expand1)
    operands: list[Any] = []
    for x, expanded in ((one, expand1), (two, expand2), (three, expand3)):
        operands += [x, [d for d in range(n_dims) if d not in expanded]]
    return jnp.einsum(*operands, [d for d in range(n_dims) if d not in sumdim])


@rule(aten.resize.default)
def resize(out: ResultSpec, x: Array, size: Sequence[Any], **_: Any) -> Array:
    """The first elements; what comes behind them is 0 (PyTorch leaves it as memory was)."""
    flat, count = x.reshape(-1), math.prod(out.shape)
    return lax.reshape(jnp.pad(flat, (0, max(count - flat.size, 0)))[:count], out.shape)


def _summands(x: Array, dim: Any) -> tuple[Array, Any, tuple[int, ...]]:
    """What is summed, in float32 at least; how many elements fall together; the dims."""
    dims = (
        range(x.ndim)
        if dim is None or dim == [] or dim == ()
        else [d % x.ndim for d in dim if x.ndim]
    )
    count: Any = 1
    for d in dims:
        count = count * x.shape[d]
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return wide, jnp.asarray(number_of(count)).astype(wide.real.dtype), tuple(dims)


@rule(aten.mean.default, aten.mean.dim)
def mean(
    out: ResultSpec, x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    wide, count, dims = _summands(x.astype(out.dtype), dim)
    return jnp.sum(wide, dims, keepdims=keepdim) / count


@rule(aten.var.correction)
def var(
    out: ResultSpec, x: Array, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Array:
    wide, count, dims = _summands(x, dim)
    distances = wide - jnp.sum(wide, dims, keepdims=True) / count
    divisor = jnp.maximum(count - (1 if correction is None else correction), 0)
    return jnp.sum(jnp.square(jnp.abs(distances)), dims, keepdims=keepdim) / divisor


@rule(aten.slice_scatter.default)
def slice_scatter(
    out: ResultSpec,
    x: Array,
    source: Array,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Array:
    dim %= x.ndim
    length = source.shape[dim]
    if is_(length, 0):
        return x
    first = within(0 if start is None else start, x.shape[dim])
    source = jnp.broadcast_to(source.astype(x.dtype), (*x.shape[:dim], length, *x.shape[dim + 1 :]))
    try:
        if step == 1:
            return lax.dynamic_update_slice_in_dim(x, source, number_of(first), dim)
    except InconclusiveDimensionOperation:  # whether it is as large as `x` at most
        pass
    positions = number_of(first) + lax.iota(jnp.int64, length) * step
    return x.at[(*[slice(None)] * dim, positions)].set(source)


@rule(aten.select_scatter.default)
def select_scatter(out: ResultSpec, x: Array, source: Array, dim: int, index: Any) -> Array:
    dim %= x.ndim
    at = x.shape[dim] + index if isinstance(index, int) and index < 0 else index
    new = lax.expand_dims(jnp.broadcast_to(source, x.shape[:dim] + x.shape[dim + 1 :]), [dim])
    return lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), number_of(at), dim)


@rule(aten.scaled_dot_product_attention.default)
def attention(
    out: ResultSpec,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Array:
    """Softmax in float32 at least. A query that may look nowhere gets zeros, as in PyTorch."""
    if dropout_p:
        raise LoweringError("attention with dropout is for training; export `model.eval()`")
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (jnp.repeat(a, groups, axis=-3) for a in (key, value))
    width = query.shape[-1]
    factor = (1 / math.sqrt(width)) if scale is None else scale
    wide = jnp.promote_types(query.dtype, jnp.float32)
    scores = jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=wide) * factor
    look: Array | None = None
    if is_causal:
        rows = lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 0)
        look = rows >= lax.broadcasted_iota(jnp.int32, scores.shape[-2:], 1)
    if attn_mask is not None:
        if attn_mask.dtype == jnp.bool_:
            look = attn_mask if look is None else look & attn_mask
        else:
            scores = scores + attn_mask.astype(wide)
    if look is not None:
        scores = jnp.where(look, scores, -jnp.inf)
    highest = jnp.max(scores, -1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0))
    total = jnp.sum(weights, -1, keepdims=True)
    weights = (weights / jnp.where(total == 0, 1, total)).astype(query.dtype)
    return jnp.einsum("...qk,...kd->...qd", weights, value).astype(out.dtype)


def _uniform(out: ResultSpec, key: Array, *_: Any, **__: Any) -> Array:
    return jax.random.uniform(key, out.shape, out.dtype)


def _normal(out: ResultSpec, key: Array, *_: Any, **__: Any) -> Array:
    return jax.random.normal(key, out.shape, out.dtype)


def _integers(out: ResultSpec, key: Array, *bounds: Any, **__: Any) -> Array:
    """From the first to below the second of two bounds, or from 0 to below the only one."""
    numbers = [b for b in bounds if not isinstance(b, (jax.Array, tuple, list))]
    low, high = numbers if len(numbers) > 1 else (0, numbers[0])
    return jax.random.randint(key, out.shape, number_of(low), number_of(high), jnp.int64).astype(
        out.dtype
    )


RANDOM.update(
    dict.fromkeys((aten.rand.default, aten.rand_like.default), _uniform)
    | dict.fromkeys((aten.randn.default, aten.randn_like.default), _normal)
    | dict.fromkeys(
        (
            aten.randint.default,
            aten.randint.low,
            aten.randint_like.default,
            aten.randint_like.low_dtype,
        ),
        _integers,
    )
)


@rule(
    aten.nonzero.default,
    aten._local_scalar_dense.default,
    aten.masked_select.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten.bincount.default,
)
def refused(out: Any, *_: Any, **__: Any) -> Any:
    raise LoweringError(
        "the size or the Python number that it gives follows from values, not from sizes of inputs",
        hint="masks instead of `nonzero` and `x[mask]`; a tensor's value stays in a tensor (docs/export.md)",
    )


# What graphs compute with sizes and numbers.
SYMBOLIC: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    operator.floordiv: operator.floordiv,
    operator.mod: operator.mod,
    operator.pow: operator.pow,
    operator.getitem: operator.getitem,
    operator.truediv: lambda a, b: number_of(a) / number_of(b),
    torch.sym_float: lambda a: float(a) if isinstance(a, int) else number_of(a) * 1.0,
    torch.sym_max: core.max_dim,
    torch.sym_min: core.min_dim,
    aten.sym_numel.default: lambda x: x.size,
    aten.sym_size.int: lambda x, dim: x.shape[dim],
}
