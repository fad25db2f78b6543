"""Rules for views, which the tape has as strides and an exported program as operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt.plugin import aten
from torch_pjrt_quant.exporting.rule_table import Array, ResultSpec, is_, rule, sliced, within


@rule(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.flatten.using_ints,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.unflatten.int,
)
def reshaped(out: ResultSpec, x: Array, *_: Any, **__: Any) -> Array:
    return lax.reshape(x, out.shape)


@rule(
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.contiguous.default,
    aten.clone.default,
    aten.dropout.default,
)
def same(out: ResultSpec, x: Array, *_: Any, **__: Any) -> Array:
    return x


@rule(aten.expand.default, aten.expand_as.default)
def expand(out: ResultSpec, x: Array, *_: Any, **__: Any) -> Array:
    return jnp.broadcast_to(x, out.shape)


@rule(aten.permute.default)
def permute(out: ResultSpec, x: Array, dims: Sequence[int]) -> Array:
    return lax.transpose(x, [d % x.ndim for d in dims])


@rule(aten.transpose.int)
def transpose(out: ResultSpec, x: Array, dim0: int, dim1: int) -> Array:
    return jnp.swapaxes(x, dim0, dim1) if x.ndim else x


@rule(aten.t.default, aten.numpy_T.default)
def t(out: ResultSpec, x: Array) -> Array:
    return x.T


@rule(aten.slice.Tensor)
def slice_(
    out: ResultSpec, x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    """The result's size is known, so only where it starts is worked out here."""
    dim %= x.ndim
    size, length = x.shape[dim], out.shape[dim]
    if is_(length, 0):
        return jnp.zeros(out.shape, x.dtype)
    return sliced(x, within(0 if start is None else start, size), length, dim, step)


@rule(aten.select.int)
def select(out: ResultSpec, x: Array, dim: int, index: Any) -> Array:
    dim %= x.ndim
    if isinstance(index, int) and index < 0:
        index = x.shape[dim] + index
    if isinstance(index, jax.Array):
        return lax.dynamic_index_in_dim(x, index, dim, keepdims=False)
    return lax.squeeze(sliced(x, index, 1, dim), [dim])


@rule(aten.narrow.default)
def narrow(out: ResultSpec, x: Array, dim: int, start: Any, length: Any) -> Array:
    return sliced(x, within(start, x.shape[dim]), length, dim % x.ndim)


@rule(
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.split.sizes,
    aten.chunk.default,
    aten.unsafe_chunk.default,
    aten.unsafe_split.Tensor,
    aten.unsafe_split_with_sizes.default,
    aten.tensor_split.sections,
)
def split(out: Sequence[ResultSpec], x: Array, sizes: Any, dim: int = 0) -> list[Array]:
    """Each part has the size that PyTorch knows."""
    dim %= x.ndim
    first: Any = 0
    parts = []
    for look in out:
        parts.append(sliced(x, first, look.shape[dim], dim))
        first = first + look.shape[dim]
    return parts


@rule(aten.unbind.int)
def unbind(out: Sequence[ResultSpec], x: Array, dim: int = 0) -> list[Array]:
    dim %= x.ndim
    return [lax.index_in_dim(x, i, dim, keepdims=False) for i in range(len(out))]


@rule(aten.diagonal.default)
def diagonal(out: ResultSpec, x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Its length is known, so it is that many elements, one step to the right and down each."""
    x = jnp.moveaxis(x, (dim1, dim2), (-2, -1))
    steps = lax.iota(jnp.int32, out.shape[-1])
    return x[..., steps + max(-offset, 0), steps + max(offset, 0)]


@rule(aten.movedim.intlist)
def movedim(out: ResultSpec, x: Array, source: Sequence[int], destination: Sequence[int]) -> Array:
    return jnp.moveaxis(x, source, destination)


@rule(aten.unfold.default)
def unfold(out: ResultSpec, x: Array, dimension: int, size: int, step: int) -> Array:
    if not x.ndim:
        return lax.reshape(x, out.shape)
    dim = dimension % x.ndim
    starts = lax.iota(jnp.int32, out.shape[dim]) * step
    positions = starts[:, None] + jnp.arange(size, dtype=jnp.int32)
    return jnp.moveaxis(jnp.take(x, positions, axis=dim), dim + 1, -1)


def owners(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node, and what it is a view of, one after the other: nodes whose values share its memory."""
    memory = node.meta["val"].untyped_storage()._cdata
    while True:
        yield node
        source = node.args[0] if node.op == "call_function" and node.args else None
        value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata != memory:
            return
        node = source  # type: ignore[assignment]


def strided(
    fake: torch.Tensor, x: Array, shape: Sequence[Any], stride: Sequence[Any], first: Any
) -> Array | None:
    """The elements of `x` that lie at `first + sum(index * stride)` in memory, if all of them are its own.

    fake    says where the elements of `x` lie. Where sizes vary, `x` must be contiguous at the beginning.
    """
    numbers = (*shape, *stride, first, *fake.shape, *fake.stride(), fake.storage_offset())
    if all(isinstance(n, int) for n in numbers):
        wanted = _positions(shape, stride, first)
        own = _positions(fake.shape, fake.stride(), fake.storage_offset()).reshape(-1)
        order = np.argsort(own, kind="stable")
        near = np.searchsorted(own, wanted, sorter=order).clip(max=max(own.size - 1, 0))
        if wanted.size and (not own.size or (own[order[near]] != wanted).any()):
            return None
        return x.reshape(-1)[order[near]] if wanted.size else jnp.zeros(shape, x.dtype)
    if not fake.is_contiguous() or fake.storage_offset():
        return None
    positions: Any = first
    for n, (length, step) in enumerate(zip(shape, stride, strict=True)):
        sizes = [1] * len(shape)
        sizes[n] = length
        positions = positions + lax.reshape(lax.iota(np.int64, length) * step, sizes)
    return jnp.broadcast_to(x.reshape(-1)[positions], shape)


def _positions(shape: Sequence[Any], stride: Sequence[Any], first: Any) -> Any:
    """Where in memory each element lies."""
    positions = np.full(tuple(shape), first, np.int64)
    for n, (length, step) in enumerate(zip(shape, stride, strict=True)):
        positions += (np.arange(length) * step).reshape(
            [-1 if d == n else 1 for d in range(len(shape))]
        )
    return positions


@rule(aten.view_as_real.default)
def view_as_real(out: ResultSpec, x: Array) -> Array:
    return jnp.stack([x.real, x.imag], -1)


@rule(aten.view_as_complex.default)
def view_as_complex(out: ResultSpec, x: Array) -> Array:
    return lax.complex(x[..., 0], x[..., 1])


@rule(aten.real.default)
def real(out: ResultSpec, x: Array) -> Array:
    return x.real


@rule(aten.imag.default)
def imag(out: ResultSpec, x: Array) -> Array:
    return x.imag


@rule(aten._conj.default, aten.conj.default, aten.conj_physical.default)
def conj(out: ResultSpec, x: Array) -> Array:
    return lax.conj(x) if jnp.iscomplexobj(x) else x


@rule(aten._neg_view.default)
def negative(out: ResultSpec, x: Array) -> Array:
    return -x


@rule(aten.resolve_conj.default, aten.resolve_neg.default)
def resolved(out: ResultSpec, x: Array) -> Array:
    return x


@rule(aten.view.dtype)
def view_dtype(out: ResultSpec, x: Array, dtype: torch.dtype) -> Array:
    """The bytes as another dtype."""
    if x.dtype == out.dtype:
        return x
    if x.dtype.itemsize == out.dtype.itemsize:
        return lax.bitcast_convert_type(x, out.dtype)
    if x.dtype.itemsize < out.dtype.itemsize:
        ratio = out.dtype.itemsize // x.dtype.itemsize
        x = x.reshape(*x.shape[:-1], x.shape[-1] // ratio, ratio)
        return lax.bitcast_convert_type(x, out.dtype)
    return lax.bitcast_convert_type(x, out.dtype).reshape(out.shape)
