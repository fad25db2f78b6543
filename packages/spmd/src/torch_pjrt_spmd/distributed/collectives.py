"""Collectives as functions of JAX arrays, of each rank its own, under `shard_map` along the axis of ranks.

What else than arrays they depend on comes first, as plain values: so a program with them is kept on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_pjrt_spmd.distributed.reductions import (
    AXIS,
    all_reduced,
    as_bits,
    from_bits,
    from_root,
    reduced,
    scattered_from_root,
)

Shape = tuple[int, ...]


def all_reduce(kind: str, factor: float, *xs: Any) -> list[Any]:
    """The reduction of each array, on each rank. `kind` is the name of a `ReduceOp`."""
    one = all_reduced(kind, _size(), factor)
    return [one(x) for x in xs]


def reduce_scatter(kind: str, factor: float, shapes: Sequence[Shape], *xs: Any) -> list[Any]:
    """Of the reduction of each array, which has a part for each rank, its own; of these shapes."""
    n = _size()
    reduce = reduced(kind, n, factor)
    return [reduce(_exchanged(x, (n, *shape))) for x, shape in zip(xs, shapes, strict=True)]


def all_gather(*xs: Any) -> list[Any]:
    """Of each array what each rank has, one after the other."""
    n = _size()
    return [part for x in xs for part in _gathered(x, (n, *x.shape))]


def gather(root: int, *xs: Any) -> list[Any]:
    """As `all_gather`: that others than the root compute it, too, costs them nothing."""
    return all_gather(*xs)


def all_gather_into_tensor(shapes: Sequence[Shape], *xs: Any) -> list[Any]:
    """Of each array what the ranks have, as one of these shapes."""
    return [_gathered(x, shape) for x, shape in zip(xs, shapes, strict=True)]


def broadcast(root: int, *xs: Any) -> list[Any]:
    """What the root has, on each rank."""
    return [from_root(x, root) for x in xs]


def scatter(root: int, x: Any) -> list[Any]:
    """Of what the root has, its own element along the first dim."""
    return [scattered_from_root(x, root)]


def all_to_all_single(shape: Shape, x: Any) -> list[Any]:
    """Each rank's part for this one, of an array with equal parts."""
    n = _size()
    return [_exchanged(x.reshape(-1), (n, x.size // n)).reshape(shape)]


def all_to_all(x: Any) -> list[Any]:
    """What each rank has for this one, of a stack with an element for each."""
    return list(_exchanged(x, x.shape))


def _size() -> int:
    """How many ranks there are."""
    import jax

    return jax.lax.axis_size(AXIS)


def _exchanged(x: Any, shape: Shape) -> Any:
    """What each rank has for this one: `shape`'s first dim is that of ranks, before and after."""
    import jax

    bits = as_bits(x)
    parts = bits.reshape(*shape, *bits.shape[x.ndim :])
    return from_bits(jax.lax.all_to_all(parts, AXIS, 0, 0, tiled=True), x.dtype)


def _gathered(x: Any, shape: Shape) -> Any:
    import jax

    bits = as_bits(x)
    whole = jax.lax.all_gather(bits, AXIS)
    return from_bits(whole.reshape(*shape, *bits.shape[x.ndim :]), x.dtype)
