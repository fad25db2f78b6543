"""Collectives as functions of JAX arrays, of each rank its own, under `shard_map` along axes of ranks.

What else than arrays they depend on comes first, as plain values: so a program with them is kept on disk. The
first of it is where the ranks of the group lie among those that run the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_pjrt_spmd.distributed.lines import Line, axes_of
from torch_pjrt_spmd.distributed.reductions import (
    Axes,
    all_reduced,
    as_bits,
    from_bits,
    from_root,
    reduced,
    scattered_from_root,
)

Shape = tuple[int, ...]


def all_reduce(line: Line, kind: str, factor: float, *xs: Any) -> list[Any]:
    """The reduction of each array, on each rank. `kind` is the name of a `ReduceOp`."""
    axes = axes_of(line)
    one = all_reduced(axes, kind, _size(axes), factor)
    return [one(x) for x in xs]


def reduce_scatter(
    line: Line, kind: str, factor: float, shapes: Sequence[Shape], *xs: Any
) -> list[Any]:
    """Of the reduction of each array, which has a part for each rank, its own; of these shapes."""
    axes = axes_of(line)
    n = _size(axes)
    reduce = reduced(kind, n, factor)
    return [reduce(_exchanged(axes, x, (n, *shape))) for x, shape in zip(xs, shapes, strict=True)]


def all_gather(line: Line, *xs: Any) -> list[Any]:
    """Of each array what each rank has, one after the other."""
    axes = axes_of(line)
    n = _size(axes)
    return [part for x in xs for part in _gathered(axes, x, (n, *x.shape))]


def gather(line: Line, root: int, *xs: Any) -> list[Any]:
    """As `all_gather`: that others than the root compute it, too, costs them nothing."""
    return all_gather(line, *xs)


def all_gather_into_tensor(line: Line, shapes: Sequence[Shape], *xs: Any) -> list[Any]:
    """Of each array what the ranks have, as one of these shapes."""
    axes = axes_of(line)
    return [_gathered(axes, x, shape) for x, shape in zip(xs, shapes, strict=True)]


def broadcast(line: Line, root: int, *xs: Any) -> list[Any]:
    """What the root has, on each rank."""
    axes = axes_of(line)
    return [from_root(axes, x, root) for x in xs]


def scatter(line: Line, root: int, x: Any) -> list[Any]:
    """Of what the root has, its own element along the first dim."""
    return [scattered_from_root(axes_of(line), x, root)]


def all_to_all_single(line: Line, shape: Shape, x: Any) -> list[Any]:
    """Each rank's part for this one, of an array with equal parts."""
    axes = axes_of(line)
    n = _size(axes)
    return [_exchanged(axes, x.reshape(-1), (n, x.size // n)).reshape(shape)]


def all_to_all(line: Line, x: Any) -> list[Any]:
    """What each rank has for this one, of a stack with an element for each."""
    return list(_exchanged(axes_of(line), x, x.shape))


def _size(axes: Axes) -> int:
    """How many ranks there are."""
    import jax

    return jax.lax.axis_size(axes)


def _exchanged(axes: Axes, x: Any, shape: Shape) -> Any:
    """What each rank has for this one: `shape`'s first dim is that of ranks, before and after."""
    import jax

    bits = as_bits(x)
    parts = bits.reshape(*shape, *bits.shape[x.ndim :])
    return from_bits(jax.lax.all_to_all(parts, axes, 0, 0, tiled=True), x.dtype)


def _gathered(axes: Axes, x: Any, shape: Shape) -> Any:
    import jax

    bits = as_bits(x)
    whole = jax.lax.all_gather(bits, axes)
    return from_bits(whole.reshape(*shape, *bits.shape[x.ndim :]), x.dtype)
