"""Attention in blocks, of a few heads at a time, where all heads' blocks together are more than a cache has.

A block of scores of four heads, 512 x 256, takes 2 MB; one of 96 heads 50 MB, which go to memory and back
for each operation that is not part of a product. So a processor takes one group of heads after the other
(benchmarks/results/kernels.md). Within a group, and for other devices, all is as in `blockwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import client, rules
from torch_pjrt_kernels.attention import blockwise, blockwise_backward
from torch_pjrt_kernels.attention.blockwise_backward import Gradients
from torch_pjrt_kernels.attention.form import INT32, Form, Sizes
from torch_pjrt_kernels.own.sharding import splits

Array = jax.Array
# So many query heads, of all batches, are a group where that comes out even.
HEADS_OF_GROUP = 4


def forward(
    query: Array, key: Array, value: Array, form: Form, sizes: Sizes
) -> tuple[Array, Array]:
    """As `blockwise.forward`."""
    groups = _groups_of(sizes)
    if groups is None:
        return blockwise.forward(query, key, value, form, sizes)

    def of_group(query: Array, key: Array, value: Array, form: Form) -> Sequence[Array]:
        return blockwise.forward(query, key, value, form, groups.sizes)

    out = lax.full((*query.shape[:3], value.shape[3]), 0, query.dtype)
    logsumexp = lax.full(query.shape[:3], 0, rules.opmath(query.dtype))
    out, logsumexp = groups.each(of_group, (query, key, value), form, (out, logsumexp))
    return out, logsumexp


def backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    form: Form,
    sizes: Sizes,
    *,
    of_bias: bool = False,
) -> Gradients:
    """As `blockwise_backward.backward`."""
    # Gradients of a bias and of sinks are sums over groups.
    groups = None if of_bias or form.sinks is not None else _groups_of(sizes)
    given = (grad_out, query, key, value, out, logsumexp)
    if groups is None:
        return blockwise_backward.backward(*given, form, sizes, of_bias=of_bias)

    def of_group(*given: Any) -> Sequence[Array]:
        return blockwise_backward.backward(*given, sizes=groups.sizes)[:3]

    made = [lax.full(x.shape, 0, x.dtype) for x in (query, key, value)]
    of_query, of_key, of_value = groups.each(of_group, given, form, made)
    return Gradients(of_query, of_key, of_value, None, None)


@dataclass(frozen=True, slots=True)
class Groups:
    """How a call is divided: equally, along its batches or its key heads.

    sizes            those of one group.
    batches, heads   how many parts there are along each.
    """

    sizes: Sizes
    batches: int
    heads: int

    def each(
        self,
        of_group: Callable[..., Sequence[Array]],
        given: Sequence[Array],
        form: Form,
        made: Sequence[Array],
    ) -> Sequence[Array]:
        """`made` with what `of_group` gives of each group's part of `given` and of the form.

        The first dims of all arrays are batches and heads.
        """

        def body(group: Array, made: Sequence[Array]) -> Sequence[Array]:
            number = lax.convert_element_type(group, INT32)
            at = (lax.div(number, np.int32(self.heads)), lax.rem(number, np.int32(self.heads)))
            parts = (self._part(x, *at) for x in given)
            found = of_group(*parts, self._form(form, *at))
            return tuple(
                lax.dynamic_update_slice(whole, part, self._first(whole, *at))
                for whole, part in zip(made, found, strict=True)
            )

        n_groups = np.int32(self.batches * self.heads)
        return lax.fori_loop(np.int32(0), n_groups, body, tuple(made))

    def _first(self, x: Array, batch: Array, heads: Array) -> Sequence[Any]:
        """Where the part of a group begins; along a dim of one, which is that of all groups, at its start."""
        sizes = zip(x.shape, self._shape(x), (batch, heads), strict=False)
        firsts = (np.int32(0) if n == 1 else i * np.int32(size) for n, size, i in sizes)
        return *firsts, *(np.int32(0),) * (x.ndim - 2)

    def _shape(self, x: Array) -> tuple[int, ...]:
        """The shape of a group's part."""
        of_batch, of_heads, *rest = x.shape
        return max(of_batch // self.batches, 1), max(of_heads // self.heads, 1), *rest

    def _part(self, x: Array, batch: Array, heads: Array) -> Array:
        return lax.dynamic_slice(x, self._first(x, batch, heads), self._shape(x))

    def _form(self, form: Form, batch: Array, heads: Array) -> Form:
        bias, slopes, sinks, segments = form.bias, form.slopes, form.sinks, form.segments
        of_batch, of_heads = np.int32(self.sizes.batch), np.int32(self.sizes.key_heads)
        if segments is not None:
            of_queries, of_keys = (_cut(x, self.batches, batch) for x in segments)
            segments = (of_queries, of_keys)
        return replace(
            form,
            part_of=(batch * of_batch, heads * of_heads, self.heads * self.sizes.key_heads),
            bias=None if bias is None else self._part(bias, batch, heads),
            segments=segments,
            slopes=None if slopes is None else _cut(slopes, self.heads, heads),
            sinks=None if sinks is None else _cut(sinks, self.heads, heads),
        )


def _cut(x: Array, n: int, number: Array) -> Array:
    """One of `n` equal parts along the first dim."""
    size = x.shape[0] // n
    return lax.dynamic_slice_in_dim(x, number * np.int32(size), size, 0)


def _groups_of(sizes: Sizes) -> Groups | None:
    """How a call is divided; None where it is small, or computed by more than a processor's cores."""
    heads_of_batch = sizes.key_heads * sizes.sharing
    if sizes.batch * heads_of_batch <= HEADS_OF_GROUP or client().device.name != "CPU" or splits():
        return None
    if heads_of_batch <= HEADS_OF_GROUP:
        batch = _divisor(sizes.batch, HEADS_OF_GROUP // heads_of_batch)
        return Groups(replace(sizes, batch=batch), sizes.batch // batch, 1)
    heads = _divisor(sizes.key_heads, max(HEADS_OF_GROUP // sizes.sharing, 1))
    return Groups(replace(sizes, batch=1, key_heads=heads), sizes.batch, sizes.key_heads // heads)


def _divisor(n: int, most: int) -> int:
    """The greatest divisor of `n` that is at most `most`."""
    return next(x for x in range(min(n, most), 0, -1) if n % x == 0)
