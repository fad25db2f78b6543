"""Lowerings of padding. A negative amount of padding cuts off.

Padding is listed from the last dim backwards, two amounts for each dim, as PyTorch gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from torch_pjrt.lowering.dims import cut
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array

table = LoweringTable("pad")


def _by_dim(padding: Sequence[int], ndim: int) -> list[tuple[int, int, int]]:
    """(dim, before, after) for each padded dim."""
    return [
        (ndim - 1 - i // 2, padding[i], padding[i + 1])
        for i in range(0, len(padding), 2)
        if padding[i] or padding[i + 1]
    ]


@table.lowers(aten.constant_pad_nd.default)
def constant_pad_nd(self: Array, pad: Sequence[int], value: Any = 0) -> Array:
    config = [(0, 0, 0)] * self.ndim
    for dim, before, after in _by_dim(pad, self.ndim):
        config[dim] = (before, after, 0)
    return lax.pad(self, as_dtype(value, self.dtype), config)


def _around(x: Array, dim: int, before: Array | None, after: Array | None, cuts: range) -> Array:
    middle = cut(x, dim, cuts.start, cuts.stop)
    parts = [part for part in (before, middle, after) if part is not None]
    return parts[0] if len(parts) == 1 else lax.concatenate(parts, dim)


def _inner(size: int, before: int, after: int) -> range:
    """What is left of the dim itself."""
    return range(max(0, -before), size - max(0, -after))


def _reflected(self: Array, padding: Sequence[int]) -> Array:
    """The border itself is not repeated."""
    x = self
    for dim, before, after in _by_dim(padding, x.ndim):
        size = x.shape[dim]
        left = lax.rev(cut(x, dim, 1, before + 1), (dim,)) if before > 0 else None
        right = lax.rev(cut(x, dim, size - 1 - after, size - 1), (dim,)) if after > 0 else None
        x = _around(x, dim, left, right, _inner(size, before, after))
    return x


def _replicated(self: Array, padding: Sequence[int]) -> Array:
    x = self

    def border(dim: int, start: int, count: int) -> Array | None:
        if count <= 0:
            return None
        shape = [count if d == dim else n for d, n in enumerate(x.shape)]
        return lax.broadcast_in_dim(cut(x, dim, start, start + 1), shape, range(x.ndim))

    for dim, before, after in _by_dim(padding, x.ndim):
        size = x.shape[dim]
        left, right = border(dim, 0, before), border(dim, size - 1, after)
        x = _around(x, dim, left, right, _inner(size, before, after))
    return x


def _backward(padded: Callable[[Array, Sequence[int]], Array]) -> Callable[..., Array]:
    """The transpose of a padding: each gradient is added to the element that was copied there."""

    def rule(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
        wide = opmath(grad_output.dtype)
        transposed = jax.linear_transpose(
            lambda x: padded(x, padding), jax.ShapeDtypeStruct(self.shape, wide)
        )
        (grad,) = transposed(lax.convert_element_type(grad_output, wide))
        return lax.convert_element_type(grad, grad_output.dtype)

    return rule


#   overload, and its backward                                                 computed by
PADDINGS = [
    (aten.reflection_pad1d.default, aten.reflection_pad1d_backward.default, _reflected),
    (aten.reflection_pad2d.default, aten.reflection_pad2d_backward.default, _reflected),
    (aten.reflection_pad3d.default, aten.reflection_pad3d_backward.default, _reflected),
    (aten.replication_pad1d.default, aten.replication_pad1d_backward.default, _replicated),
    (aten.replication_pad2d.default, aten.replication_pad2d_backward.default, _replicated),
    (aten.replication_pad3d.default, aten.replication_pad3d_backward.default, _replicated),
]  # fmt: skip

for _op, _op_backward, _padded in PADDINGS:
    table.add(_op, _padded)
    table.add(_op_backward, _backward(_padded))
