"""How a view (size, strides, offset) of a storage becomes XLA operations, for reading and for writing.

A selection is tried in this order, and the first that fits is used:

    nothing    the view is empty
    whole      the base itself, perhaps transposed or reshaped
    dims       each dim of the view walks one dim of the base: slice, transpose, broadcast
    radix      the strides of the view divide one another: reshape the flat storage by them, then slice
    gather     anything else (overlapping windows, odd strides): computed indices into the flat storage

Views that differ in their offset only, and are slices, are one operator: the offset is a number of the
call, and becomes an input of the program when it changes (`read_at`, `write_at`).

Each is a `Window`: how to take the selected elements from the base, and how to put new ones back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.graph.tensor_spec import (
    TensorSpec,
    contiguous_spec,
    contiguous_strides,
    storage_order,
)
from torch_pjrt.lowering import complex32

Array = jax.Array


def read(base: Array, base_spec: TensorSpec, spec: TensorSpec, offset: int) -> Array:
    """The elements of `base` that a view with this spec and offset shows."""
    base, base_spec = _as_dtype(base, base_spec, spec)
    window = window_of(base_spec, spec, offset)
    return window.take(base)


def write(base: Array, new: Array, base_spec: TensorSpec, spec: TensorSpec, offset: int) -> Array:
    """`base` with the elements that the view shows replaced by `new`."""
    recast, recast_spec = _as_dtype(base, base_spec, spec)
    written = window_of(recast_spec, spec, offset).put(recast, new)
    return written if recast is base else _from_dtype(written, spec.dtype, base, base_spec)


Slide = tuple[tuple[int, ...], tuple[int, ...], tuple[int | None, ...]]


def slide_of(base_spec: TensorSpec, spec: TensorSpec, offset: int) -> Slide | None:
    """What a window has in common with those that differ from it in their place only; None if it stays put.

    The `shape` that is sliced, the sizes of the slice, and the `dims` behind the view's, as in a `Window`.
    """
    if spec.dtype != base_spec.dtype or 0 in spec.shape:
        return None
    window = window_of(base_spec, spec, offset)
    if window.indices is not None or not window._cuts or any(s != 1 for s in window.steps):
        return None
    sizes = [end - start for start, end in zip(window.starts, window.limits, strict=True)]
    return window.shape, tuple(sizes), window.dims


def read_at(
    base: Array, base_spec: TensorSpec, spec: TensorSpec, slide: Slide, offset: int | Array
) -> Array:
    """As `read`, with an offset that may be an integer on the device."""
    window, starts = _slid(base_spec, spec, slide, offset)
    return window.take(base, starts)


def write_at(
    base: Array,
    new: Array,
    base_spec: TensorSpec,
    spec: TensorSpec,
    slide: Slide,
    offset: int | Array,
) -> Array:
    """As `write`, with an offset that may be an integer on the device."""
    window, starts = _slid(base_spec, spec, slide, offset)
    return window.put(base, new, starts)


def _slid(
    base: TensorSpec, spec: TensorSpec, slide: Slide, offset: int | Array
) -> tuple[Window, list[Array] | None]:
    """The window at an offset that is known; or at the origin, and where it starts."""
    shape, sizes, dims = slide
    positions = [(s, n) for s, n in zip(contiguous_strides(shape), shape, strict=True)]
    starts, there = [0] * len(shape), None
    if isinstance(offset, int):
        starts = [offset // stride % size for stride, size in positions]
    else:
        wide = np.int64 if base.numel > np.iinfo(np.int32).max else np.int32
        there = [(offset // stride % size).astype(wide) for stride, size in positions]
    limits = [start + n for start, n in zip(starts, sizes, strict=True)]
    order, steps = storage_order(base), (1,) * len(shape)
    return _made(base, order, shape, starts, limits, steps, dims, tuple(spec.shape)), there


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A selection of elements.

    order      transpose the base so that its dims lie in storage order.
    shape      then reshape it to this.
    starts, limits, steps   then slice it so; a dim that the view lacks is cut to size 1.
    dims       the sliced dim behind each dim of the view; None for one that is broadcast.
    indices    set for a gather instead: indices into the flat storage, in the view's shape.
    """

    base: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    limits: tuple[int, ...]
    steps: tuple[int, ...]
    dims: tuple[int | None, ...]
    view: tuple[int, ...]
    indices: np.ndarray | None = None

    def take(self, base: Array, starts: Sequence[Array] | None = None) -> Array:
        """The selected elements, in the view's shape; `starts` replaces those of the window."""
        if 0 in self.view:
            return lax.full(self.view, 0, base.dtype)
        x = self._arranged(base)
        if self.indices is not None:
            return jnp.take(x, self.indices, axis=0)
        if starts is not None:
            x = lax.dynamic_slice(x, starts, self.limits)
        elif self._cuts:
            x = lax.slice(x, self.starts, self.limits, self.steps)
        kept = [d for d in self.dims if d is not None]
        dropped = [d for d in range(x.ndim) if d not in kept]
        x = _transposed(x, [*dropped, *kept])
        x = _reshaped(x, [x.shape[i] for i in range(len(dropped), x.ndim)])
        present = [i for i, d in enumerate(self.dims) if d is not None]
        if len(present) == len(self.view) and x.shape == self.view:
            return x
        return lax.broadcast_in_dim(x, self.view, present)

    def put(self, base: Array, new: Array, starts: Sequence[Array] | None = None) -> Array:
        """The base with the selected elements replaced by `new`, of the view's shape."""
        if 0 in self.view:
            return base
        x = self._arranged(base)
        if self.indices is not None:
            x = x.at[self.indices].set(new)
        else:
            # A broadcast dim shows one element several times: the last write wins.
            broadcast = [i for i, d in enumerate(self.dims) if d is None]
            for i in reversed(broadcast):
                new = lax.index_in_dim(new, new.shape[i] - 1, i, keepdims=False)
            kept = [d for d in self.dims if d is not None]
            new = _transposed(new, np.argsort(kept))
            cut = [
                -(-(limit - start) // step)
                for start, limit, step in zip(self.starts, self.limits, self.steps, strict=True)
            ]
            new = _reshaped(new, cut)
            if not self._cuts:
                x = new
            elif all(step == 1 for step in self.steps):
                x = lax.dynamic_update_slice(x, new, starts or [np.int32(s) for s in self.starts])
            else:
                slices = map(slice, self.starts, self.limits, self.steps)
                x = x.at[tuple(slices)].set(new)
        x = _reshaped(x, [self.base[d] for d in self.order])
        return _transposed(x, np.argsort(self.order))

    @property
    def _cuts(self) -> bool:
        return (
            any(self.starts) or self.limits != self.shape or any(step != 1 for step in self.steps)
        )

    def _arranged(self, base: Array) -> Array:
        return _reshaped(_transposed(base, self.order), self.shape)


def window_of(base: TensorSpec, spec: TensorSpec, offset: int) -> Window:
    """The cheapest window that shows this view of a base."""
    order = storage_order(base)
    sizes = tuple(base.shape[d] for d in order)
    view, strides = tuple(spec.shape), tuple(spec.strides)
    if 0 in view:
        return _made(base, order, sizes, (), (), (), (), view)
    if offset == 0 and spec.numel == base.numel and spec.contiguous:
        return _made(
            base, order, view, (0,) * len(view), view, (1,) * len(view), range(len(view)), view
        )
    for shape in (sizes, _coalesced(sizes, strides), _radices(base.numel, view, strides)):
        if shape is None:
            continue
        found = _by_dims(shape, view, strides, offset)
        if found is not None:
            starts, limits, steps, dims = found
            return _made(base, order, shape, starts, limits, steps, dims, view)
    positions = _positions(view, strides, offset)
    return Window(tuple(base.shape), order, (base.numel,), (), (), (), (), view, positions)


def _made(
    base: TensorSpec,
    order: Sequence[int],
    shape: Sequence[int],
    starts: Sequence[int],
    limits: Sequence[int],
    steps: Sequence[int],
    dims: Sequence[int | None],
    view: Sequence[int],
) -> Window:
    return Window(
        tuple(base.shape),
        tuple(order),
        tuple(shape),
        tuple(starts),
        tuple(limits),
        tuple(steps),
        tuple(dims),
        tuple(view),
    )


def _by_dims(
    shape: Sequence[int], view: Sequence[int], strides: Sequence[int], offset: int
) -> tuple[list[int], list[int], list[int], list[int | None]] | None:
    """Slices of a contiguous `shape` that show the view, or None if some dim of it fits no single dim."""
    base_strides = contiguous_strides(tuple(shape))
    starts: list[int] = []
    rest = offset
    for stride, size in zip(base_strides, shape, strict=True):
        start = min(rest // stride, size - 1)
        starts.append(start)
        rest -= start * stride
    if rest:
        return None
    limits = [start + 1 for start in starts]
    steps = [1] * len(shape)
    dims: list[int | None] = []
    for size, stride in zip(view, strides, strict=True):
        if size == 1 or stride == 0:
            dims.append(None)
            continue
        for dim, base_stride in enumerate(base_strides):
            step, remainder = divmod(stride, base_stride)
            if step and not remainder and shape[dim] > 1:
                break
        else:
            return None
        limit = starts[dim] + (size - 1) * step + 1
        if dim in dims or limit > shape[dim]:
            return None
        limits[dim], steps[dim] = limit, step
        dims.append(dim)
    return starts, limits, steps, dims


def _coalesced(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The base's sizes with neighbours merged wherever no stride of the view falls between them."""
    base_strides = contiguous_strides(sizes)
    wanted = set(strides)
    merged: list[int] = []
    for size, stride in zip(reversed(sizes), reversed(base_strides), strict=True):
        if merged and stride not in wanted:
            merged[-1] *= size
        else:
            merged.append(size)
    result = tuple(reversed(merged))
    return None if result == sizes else result


def _radices(numel: int, view: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The flat storage reshaped by the view's own strides, where each divides the next."""
    used = sorted({s for n, s in zip(view, strides, strict=True) if n > 1 and s > 0} | {1})
    bounds = [*used, numel]
    if any(b % a for a, b in itertools.pairwise(bounds)):
        return None
    return tuple(b // a for a, b in reversed(list(itertools.pairwise(bounds))))


def _positions(view: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
    positions = np.full((), offset, np.int64)
    for size, stride in zip(view, strides, strict=True):
        positions = positions[..., None] + np.arange(size, dtype=np.int64) * stride
    return positions


def _as_dtype(base: Array, base_spec: TensorSpec, spec: TensorSpec) -> tuple[Array, TensorSpec]:
    """The base's storage reinterpreted in the dtype of the view, as `Tensor.view(dtype)` does.

    Bytes at the end that make no whole element are left out.
    """
    if spec.dtype == base_spec.dtype:
        return base, base_spec
    ratio = max(spec.dtype.itemsize // base_spec.dtype.itemsize, 1)
    flat = _flat(base, base_spec)
    # XLA merges two bitcasts in a row wrongly where their ratios differ: none sees the one before it.
    flat = lax.optimization_barrier(flat[: flat.size // ratio * ratio])
    cast = _reinterpreted(flat, base_spec.dtype, spec.dtype)
    return cast, contiguous_spec(cast.shape, spec.dtype)


def _from_dtype(x: Array, dtype: torch.dtype, base: Array, base_spec: TensorSpec) -> Array:
    """The storage reinterpreted in the base's dtype again; bytes that were left out come from `base`."""
    flat = _reinterpreted(lax.optimization_barrier(x.reshape(-1)), dtype, base_spec.dtype)
    if flat.size < base.size:
        flat = jnp.concatenate([flat, _flat(base, base_spec)[flat.size :]])
    order = storage_order(base_spec)
    return _transposed(flat.reshape([base_spec.shape[d] for d in order]), np.argsort(order))


def _flat(base: Array, spec: TensorSpec) -> Array:
    return _transposed(base, storage_order(spec)).reshape(-1)


def _reinterpreted(flat: Array, old: torch.dtype, new: torch.dtype) -> Array:
    """The bytes of a 1-d array, as PyTorch has them, as another dtype."""
    if old is torch.complex32:
        flat = complex32.pairs_of(flat).reshape(-1)
    if new is torch.complex32:
        return complex32.of_pairs(_bitcast(flat, np.dtype(np.float16)).reshape(-1, 2))
    return _bitcast(flat, dtypes.to_jax(new))


def _bitcast(flat: Array, dtype: np.dtype) -> Array:
    """A 1-d array's bytes as another dtype. XLA cannot bitcast complex numbers or bools: they go by hand."""
    if flat.dtype.kind == "c":
        flat = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
    if flat.dtype == np.bool_:
        flat = flat.astype(np.uint8)
    if flat.dtype == dtype:
        return flat
    if dtype.kind == "c":
        parts = _bitcast(flat, np.dtype(f"f{dtype.itemsize // 2}")).reshape(-1, 2)
        return lax.complex(parts[:, 0], parts[:, 1])
    if dtype == np.bool_:
        return _bitcast(flat, np.dtype(np.uint8)) != 0
    ratio = dtype.itemsize // flat.dtype.itemsize
    if ratio > 1:
        flat = flat.reshape(-1, ratio)
    return lax.bitcast_convert_type(flat, dtype).reshape(-1)


def _transposed(x: Array, order: Sequence[int] | np.ndarray) -> Array:
    order = tuple(int(d) for d in order)
    return x if order == tuple(range(x.ndim)) else lax.transpose(x, order)


def _reshaped(x: Array, shape: Sequence[int]) -> Array:
    shape = tuple(shape)
    return x if x.shape == shape else lax.reshape(x, shape)
