"""Lowerings of pooling and its backwards.

What every rule here may assume and must keep:
    dims        spatial dims are the last ones; those before them may be any number.
    lists       a list of sizes has one entry for each spatial dim, or one for all; `stride` of []
                means the kernel's size.
    indices     of a maximum count within its plane: the first of equals, the last of nans.
    arithmetic  runs in float32 for float16 and bfloat16.

The windows of a maximum are folded one dim after the other. An `optimization_barrier` keeps XLA
from working out a padded or half-folded array anew for each slice that reads it: without it the
pooling of a ResNet takes six times as long on a CPU, and its backward twenty times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Integer, Num

Array = jax.Array
Sizes = Sequence[int]

INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)
MOST_TERMS = 64  # of an unrolled backward; past that, a scatter

table = LoweringTable("pool")


@dataclass(frozen=True, slots=True)
class Windows:
    """How the windows of one spatial dim lie on it."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool

    @property
    def reach(self) -> int:
        """How many elements a window spans."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def count(self) -> int:
        """How many windows there are. With `ceil_mode` one may hang over, not start at, the end."""
        room = self.size + 2 * self.padding - self.reach
        count = -(-room // self.stride) + 1 if self.ceil_mode else room // self.stride + 1
        if self.ceil_mode and (count - 1) * self.stride >= self.size + self.padding:
            count -= 1
        return count

    @property
    def after(self) -> int:
        """How many elements the last window wants past the end."""
        return max((self.count - 1) * self.stride + self.reach - self.size - self.padding, 0)

    def starts(self) -> np.ndarray:
        return np.arange(self.count) * self.stride - self.padding

    def piece(self, x: Array, axis: int, i: int) -> Array:
        """Element `i` of each window, of a dim that has been padded."""
        start = i * self.dilation
        limit = start + (self.count - 1) * self.stride + 1
        return lax.slice_in_dim(x, start, limit, self.stride, axis)


def _each(sizes: int | Sizes, rank: int) -> tuple[int, ...]:
    if isinstance(sizes, int):
        return (sizes,) * rank
    return tuple(sizes) if len(sizes) == rank else (sizes[0],) * rank


def _windows(
    shape: Sizes,
    rank: int,
    kernel_size: int | Sizes,
    stride: int | Sizes,
    padding: int | Sizes,
    dilation: int | Sizes,
    ceil_mode: bool,
) -> list[Windows]:
    kernel = _each(kernel_size, rank)
    steps = _each(stride, rank) if isinstance(stride, int) or len(stride) else kernel
    lists = (shape[-rank:], kernel, steps, _each(padding, rank), _each(dilation, rank))
    return [Windows(*row, ceil_mode) for row in zip(*lists, strict=True)]


def _padded(x: Array, value: Any, axis: int, low: int, high: int) -> Array:
    if low == high == 0:
        return x
    widths = [(low, high, 0) if d == axis else (0, 0, 0) for d in range(x.ndim)]
    return lax.optimization_barrier(lax.pad(x, as_dtype(value, x.dtype), widths))


def _lowest(dtype: np.dtype) -> Any:
    return -math.inf if dtype.kind in "fV" else np.iinfo(dtype).min


# Maxima


def running_max(
    pieces: Sequence[Array], codes: Sequence[Array | int], narrow: np.dtype
) -> tuple[Array, Array]:
    """The greatest of each piece, element by element, and the code of the piece it came from."""
    first, shape = pieces[0], pieces[0].shape
    arrays = [lax.full(shape, c, narrow) if isinstance(c, int) else c for c in codes]
    best = arrays[0]
    for piece, code in zip(pieces[1:], arrays[1:], strict=True):
        greater = piece > first
        if first.dtype.kind in "fV":
            greater = greater | (piece != piece)
        first = lax.select(greater, piece, first)
        best = lax.select(greater, code, best)
    return first, best


def max_pool(
    x: Array,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: int | Sizes = 0,
    dilation: int | Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    dims = _windows(x.shape, rank, kernel_size, stride, padding, dilation, ceil_mode)
    # A code says which element of its window won; it is made an index in the end.
    n_codes = math.prod(w.kernel for w in dims)
    narrow = np.dtype(np.int8) if n_codes < 128 else INT32
    codes: Array | None = None
    inner = 1
    for axis, w in zip(reversed(range(x.ndim - rank, x.ndim)), reversed(dims), strict=True):
        x = _padded(x, _lowest(x.dtype), axis, w.padding, w.after)
        pieces = [w.piece(x, axis, i) for i in range(w.kernel)]
        own: list[Array | int] = [i * inner for i in range(w.kernel)]
        if codes is not None:
            codes = _padded(codes, 0, axis, w.padding, w.after)
            own = [w.piece(codes, axis, i) + as_dtype(i * inner, narrow) for i in range(w.kernel)]
        x, codes = running_max(pieces, own, narrow)
        if axis > x.ndim - rank:
            x, codes = lax.optimization_barrier(x), lax.optimization_barrier(codes)
        inner *= w.kernel
    assert codes is not None
    return x, _indices(codes, dims)


def _indices(codes: Array, dims: Sequence[Windows]) -> Array:
    """The index within its plane of the element of each window that a code tells."""
    codes = as_dtype(codes, INT32)
    flat = lax.full_like(codes, 0)
    inner = math.prod(w.kernel for w in dims)
    for axis, w in enumerate(dims, codes.ndim - len(dims)):
        inner //= w.kernel
        offset = lax.rem(lax.div(codes, np.int32(inner)), np.int32(w.kernel)) * np.int32(w.dilation)
        starts = w.starts()
        # Where all of a window is -inf, its first element wins: the first that is no padding.
        first = np.where(starts < 0, -starts % w.dilation, 0).astype(np.int32)
        along = lax.broadcast_in_dim(starts.astype(np.int32), codes.shape, (axis,)) + offset
        along = lax.max(along, lax.broadcast_in_dim(first, codes.shape, (axis,)))
        flat = flat * np.int32(w.size) + along
    return as_dtype(flat, INT64)


@table.lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(self: Array, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
    return max_pool(self, 2, *args, **kwargs)


@table.lowers(aten.max_pool3d_with_indices.default)
def max_pool3d_with_indices(self: Array, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
    return max_pool(self, 3, *args, **kwargs)


def scattered(grad: Array, indices: Array, shape: tuple[int, ...], rank: int) -> Array:
    """Zeros of `shape` with each gradient added at its index within its plane."""
    planes, size = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    wide = INT32 if planes * size < 2**31 else INT64
    rows = lax.reshape(as_dtype(indices, wide), (planes, math.prod(indices.shape[-rank:])))
    rows = rows + lax.broadcasted_iota(wide, rows.shape, 0) * as_dtype(size, wide)
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    total = lax.scatter_add(
        lax.full((planes * size,), 0, grad.dtype),
        lax.reshape(rows, (rows.size, 1)),
        lax.reshape(grad, (grad.size,)),
        numbers,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
    )
    return lax.reshape(total, shape)


def _max_pool_backward(
    grad: Array, indices: Array, shape: tuple[int, ...], dims: Sequence[Windows]
) -> Array:
    """Each element gathers the gradients of the windows that chose it: no scatter.

    Element `y` of a dim is element `i` of window `o` where `y + padding` is
    `o * stride + i * dilation`. Elements of one phase, `(y + padding) % stride`, share the `i` that
    can fit: their windows are slices, and the phases are interleaved in the end.
    """
    rank = len(dims)
    lead = shape[: len(shape) - rank]
    blocks = [-(-(w.size + w.padding) // w.stride) for w in dims]
    before = [(w.reach - 1) // w.stride for w in dims]
    widths = [(0, 0, 0)] * len(lead) + [
        (b, n - w.count, 0) for b, n, w in zip(before, blocks, dims, strict=True)
    ]
    chosen = lax.pad(as_dtype(indices, INT32), np.int32(-1), widths)
    values = lax.pad(grad, as_dtype(0, grad.dtype), widths)
    chosen, values = lax.optimization_barrier(chosen), lax.optimization_barrier(values)

    full = (*lead, *blocks)
    zero = lax.full(full, 0, grad.dtype)
    phases = dict.fromkeys(itertools.product(*(range(w.stride) for w in dims)), zero)
    for offsets in itertools.product(*(range(0, w.reach, w.dilation) for w in dims)):
        phase = tuple(o % w.stride for o, w in zip(offsets, dims, strict=True))
        starts = [b - o // w.stride for b, o, w in zip(before, offsets, dims, strict=True)]
        here = lax.full(tuple(blocks), 0, INT32)
        for axis, (w, p) in enumerate(zip(dims, phase, strict=True)):
            y = lax.broadcasted_iota(INT32, here.shape, axis) * np.int32(w.stride)
            here = here * np.int32(w.size) + (y + np.int32(p - w.padding))
        here = lax.broadcast(here, lead)
        cut = (
            [0] * len(lead) + starts,
            [*lead, *(s + n for s, n in zip(starts, blocks, strict=True))],
        )
        mine = lax.slice(chosen, *cut) == here
        phases[phase] = phases[phase] + lax.select(mine, lax.slice(values, *cut), zero)

    # Lay the phases of each dim next to its blocks, last dim first, then cut the padding off.
    out = list(phases.values())
    for axis, w in reversed(list(enumerate(dims, len(lead)))):
        groups = [out[i : i + w.stride] for i in range(0, len(out), w.stride)]
        out = [_interleaved(g, axis) for g in groups]
    limits = [w.padding + w.size for w in dims]
    return lax.slice(out[0], [0] * len(lead) + [w.padding for w in dims], [*lead, *limits])


def _interleaved(arrays: Sequence[Array], axis: int) -> Array:
    """An array whose dim `axis` takes from each of `arrays` in turn."""
    if len(arrays) == 1:
        return arrays[0]
    shape = arrays[0].shape
    joined = lax.concatenate([lax.expand_dims(a, (axis + 1,)) for a in arrays], axis + 1)
    return lax.reshape(joined, (*shape[:axis], shape[axis] * len(arrays), *shape[axis + 1 :]))


@table.lowers(
    aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default
)
def max_pool_with_indices_backward(
    grad_output: Num[Array, "*windows"],
    self: Num[Array, "*elements"],
    kernel_size: Sizes,
    stride: Sizes,
    padding: int | Sizes,
    dilation: int | Sizes,
    ceil_mode: bool,
    indices: Integer[Array, "*windows"],
) -> Num[Array, "*elements"]:
    rank = len(kernel_size)
    dims = _windows(self.shape, rank, kernel_size, stride, padding, dilation, ceil_mode)
    grad = as_dtype(grad_output, opmath(grad_output.dtype))
    if math.prod(max(w.kernel, w.stride) for w in dims) <= MOST_TERMS:
        result = _max_pool_backward(grad, indices, self.shape, dims)
    else:
        result = scattered(grad, indices, self.shape, rank)
    return as_dtype(result, self.dtype)


# Means


def _window_sums(x: Array, dims: Sequence[Windows]) -> Array:
    lead = x.ndim - len(dims)
    return lax.reduce_window(
        x,
        np.zeros((), x.dtype)[()],
        lax.add,
        (1,) * lead + tuple(w.kernel for w in dims),
        (1,) * lead + tuple(w.stride for w in dims),
        [(0, 0)] * lead + [(w.padding, w.after) for w in dims],
    )


def _divisors(
    dims: Sequence[Windows], count_include_pad: bool, divisor_override: int | None
) -> np.ndarray | int:
    """What each window's sum is divided by: a number, or an array of the windows' shape.

    With `count_include_pad` padding counts, but not what hangs over it.
    """
    if divisor_override is not None:
        return divisor_override
    counts: np.ndarray | int = 1
    for w in dims:
        starts = w.starts()
        ends = np.minimum(starts + w.kernel, w.size + w.padding)
        if not count_include_pad:
            starts, ends = np.maximum(starts, 0), np.minimum(ends, w.size)
        counts = np.multiply.outer(counts, ends - starts)
    assert isinstance(counts, np.ndarray)
    same = counts.size and (counts == counts.flat[0]).all()
    return int(counts.flat[0]) if same else counts


def _divided(x: Array, divisors: np.ndarray | int) -> Array:
    divisor = lax.broadcast_in_dim(
        np.asarray(divisors, x.dtype), x.shape, range(x.ndim - np.ndim(divisors), x.ndim)
    )
    return lax.div(x, divisor)


def _avg_pool(
    x: Array,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes = (),
    padding: int | Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    dims = _windows(x.shape, rank, kernel_size, stride, padding, 1, ceil_mode)
    sums = _window_sums(as_dtype(x, opmath(x.dtype)), dims)
    return as_dtype(_divided(sums, _divisors(dims, count_include_pad, divisor_override)), x.dtype)


@table.lowers(aten.avg_pool2d.default)
def avg_pool2d(self: Array, *args: Any, **kwargs: Any) -> Array:
    return _avg_pool(self, 2, *args, **kwargs)


@table.lowers(aten.avg_pool3d.default)
def avg_pool3d(self: Array, *args: Any, **kwargs: Any) -> Array:
    return _avg_pool(self, 3, *args, **kwargs)


def _avg_pool_backward(
    grad_output: Array,
    self: Array,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes,
    padding: int | Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    dims = _windows(self.shape, rank, kernel_size, stride, padding, 1, ceil_mode)
    grad = as_dtype(grad_output, opmath(grad_output.dtype))
    grad = _divided(grad, _divisors(dims, count_include_pad, divisor_override))
    like = jax.ShapeDtypeStruct(self.shape, grad.dtype)
    (result,) = jax.linear_transpose(lambda x: _window_sums(x, dims), like)(grad)
    return as_dtype(result, self.dtype)


@table.lowers(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(grad_output: Array, self: Array, *args: Any, **kwargs: Any) -> Array:
    return _avg_pool_backward(grad_output, self, 2, *args, **kwargs)


@table.lowers(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(grad_output: Array, self: Array, *args: Any, **kwargs: Any) -> Array:
    return _avg_pool_backward(grad_output, self, 3, *args, **kwargs)
