"""Collectives by the name of a mesh axis, for functions that `shard_map` runs on each chip.

Each is an operator of PyTorch's with a fake kernel and a gradient, and JAX's collective as its rule. A
gradient is that of the sum over all chips of what each computes: `psum` of a gradient is what comes back
through a `psum`, and what one chip has sent to another comes back from there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch

from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import annotate, define_annotation, lowers
from torch_pjrt_spmd.spec import ShardingError

Axes = str | Sequence[str]

_library = torch.library.Library("torch_pjrt_spmd", "DEF")
for _schema in (
    "psum(Tensor x, str[] axes) -> Tensor",
    "pmax(Tensor x, str[] axes) -> Tensor",
    "pmin(Tensor x, str[] axes) -> Tensor",
    "all_gather(Tensor x, str[] axes, int n, int dim) -> Tensor",
    "reduce_scatter(Tensor x, str[] axes, int n, int dim) -> Tensor",
    "all_to_all(Tensor x, str[] axes, int n, int split_dim, int concat_dim) -> Tensor",
    "ppermute(Tensor x, str axis, int[] sources, int[] targets) -> Tensor",
):
    _library.define(_schema)
_ops: Any = torch.ops.torch_pjrt_spmd


class _Within(threading.local):
    """The axes along which this thread's function runs on parts now, and their sizes."""

    axes: Mapping[str, int] | None = None


_within = _Within()


@contextmanager
def within(axes: Mapping[str, int]) -> Iterator[None]:
    """Collectives in the block may name these axes, and no others."""
    before, _within.axes = _within.axes, axes
    try:
        yield
    finally:
        _within.axes = before


def psum(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The sum over the chips along the axes, on each of them; of the same shape and dtype.

    As of all functions here, `ShardingError` outside `shard_map` and for an axis that this does not map.
    `UnsupportedError` for bools: `pmax` says whether one is true, `pmin` whether all are.
    """
    _refuse(x, torch.bool, "sum")
    return _ops.psum(x, list(_sizes(axes)))


def pmean(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The mean over the chips along the axes, on each of them, of a tensor of floats."""
    return psum(x, axes) / axis_size(axes)


def pmax(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The largest over the chips along the axes, element by element, on each of them; a NaN, if one has it.

    Chips that have it share the gradient alike, as `torch.amax` does. `UnsupportedError` for complex numbers.
    """
    _refuse(x, torch.complex64, "maximum")
    return _ops.pmax(x, list(_sizes(axes)))


def pmin(x: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The smallest over the chips along the axes, element by element, on each of them; else as `pmax`."""
    _refuse(x, torch.complex64, "minimum")
    return _ops.pmin(x, list(_sizes(axes)))


def all_gather(x: torch.Tensor, axes: Axes, dim: int = 0) -> torch.Tensor:
    """What the chips along the axes have, one after the other along `dim`, on each of them."""
    sizes = _sizes(axes)
    return _ops.all_gather(x, list(sizes), prod(sizes.values()), _dim(x, dim))


def reduce_scatter(x: torch.Tensor, axes: Axes, dim: int = 0) -> torch.Tensor:
    """The sum over the chips along the axes, of which each keeps its part of `dim`.

    `ShardingError` for a dim that the chips do not divide, `UnsupportedError` for bools.
    """
    _refuse(x, torch.bool, "sum")
    sizes = _sizes(axes)
    return _ops.reduce_scatter(x, list(sizes), prod(sizes.values()), _divided(x, dim, sizes))


def all_to_all(x: torch.Tensor, axes: Axes, split_dim: int, concat_dim: int) -> torch.Tensor:
    """Each chip cuts `split_dim` into parts, one for each chip, and joins what it gets along `concat_dim`.

    `ShardingError` for a dim that the chips do not divide.
    """
    sizes = _sizes(axes)
    split, concat = _divided(x, split_dim, sizes), _dim(x, concat_dim)
    return _ops.all_to_all(x, list(sizes), prod(sizes.values()), split, concat)


def ppermute(x: torch.Tensor, axis: str, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """What another chip along the axis has: of each pair the second gets it from the first.

    Who gets nothing has zeros. `ShardingError` for a chip that is not there, or that is twice a source or
    twice a target.

        n = axis_size("sequence")
        x = ppermute(x, "sequence", [(i, (i + 1) % n) for i in range(n)])  # each hands on to the next
    """
    size = _sizes(axis)[axis]
    sources, targets = [s for s, _ in pairs], [t for _, t in pairs]
    for side in (sources, targets):
        if len(set(side)) < len(side) or not all(0 <= i < size for i in side):
            raise ShardingError(
                "Each chip sends to one other at most, and gets from one.",
                saw=repr(list(pairs)),
                expected=f"pairs of different numbers from 0 to {size - 1}",
            )
    return _ops.ppermute(x, axis, sources, targets)


def axis_index(axis: str) -> torch.Tensor:
    """Where along the axis the chip is that computes: an int64 of no dims, another one on each."""
    _sizes(axis)
    return annotate(torch.zeros((), dtype=torch.int64, device="pjrt"), _INDEX, axis)


def axis_size(axes: Axes) -> int:
    """How many chips lie along the axes."""
    return prod(_sizes(axes).values())


def _sizes(axes: Axes) -> dict[str, int]:
    """The axes by name and how many chips lie along each."""
    names = [axes] if isinstance(axes, str) else list(axes)
    mapped = _within.axes
    if mapped is None:
        raise ShardingError(
            "A collective by the name of an axis is called outside `shard_map`.",
            saw=repr(axes),
            hint="torch_pjrt_spmd.shard_map(function, mesh, in_specs, out_specs) runs one on each chip",
        )
    if missing := [name for name in names if name not in mapped] or (not names and ["no axis"]):
        raise ShardingError(
            "A collective names an axis that `shard_map` does not map.",
            saw=", ".join(map(repr, missing)),
            expected=f"one or more of {', '.join(map(repr, mapped))}",
        )
    return {name: mapped[name] for name in names}


def _refuse(x: torch.Tensor, like: torch.dtype, what: str) -> None:
    if x.dtype == like or (like.is_complex and x.is_complex()):
        raise UnsupportedError(
            f"There is no {what} of {'complex numbers' if like.is_complex else 'bools'} over chips.",
            saw=f"a part of {x.dtype} {list(x.shape)}",
            hint=None if like.is_complex else "x.int(); or pmax for any, pmin for all of them",
        )


def _dim(x: torch.Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ShardingError(f"There is no dim {dim}.", saw=f"a part of {list(x.shape)}")
    return dim % x.dim()


def _divided(x: torch.Tensor, dim: int, sizes: Mapping[str, int]) -> int:
    dim, n = _dim(x, dim), prod(sizes.values())
    if x.shape[dim] % n:
        raise ShardingError(
            f"Dim {dim} has {x.shape[dim]} elements, which {n} chips do not divide.",
            saw=f"a part of {list(x.shape)}, the axes {', '.join(map(repr, sizes))}",
        )
    return dim


# Rules. JAX takes the names of several axes as a tuple.


@lowers(_ops.psum.default)
def _psum(x: Any, axes: Sequence[str]) -> Any:
    import jax

    return jax.lax.psum(x, tuple(axes))


@lowers(_ops.pmax.default)
def _pmax(x: Any, axes: Sequence[str]) -> Any:
    import jax

    return jax.lax.pmax(x, tuple(axes))


@lowers(_ops.pmin.default)
def _pmin(x: Any, axes: Sequence[str]) -> Any:
    import jax

    return jax.lax.pmin(x, tuple(axes))


@lowers(_ops.all_gather.default, static=("n", "dim"))
def _all_gather(x: Any, axes: Sequence[str], n: int, dim: int) -> Any:
    import jax

    return jax.lax.all_gather(x, tuple(axes), axis=dim, tiled=True)


@lowers(_ops.reduce_scatter.default, static=("n", "dim"))
def _reduce_scatter(x: Any, axes: Sequence[str], n: int, dim: int) -> Any:
    import jax

    return jax.lax.psum_scatter(x, tuple(axes), scatter_dimension=dim, tiled=True)


@lowers(_ops.all_to_all.default, static=("n", "split_dim", "concat_dim"))
def _all_to_all(x: Any, axes: Sequence[str], n: int, split_dim: int, concat_dim: int) -> Any:
    import jax

    return jax.lax.all_to_all(x, tuple(axes), split_dim, concat_dim, tiled=True)


@lowers(_ops.ppermute.default, static=("sources", "targets"))
def _ppermute(x: Any, axis: str, sources: Sequence[int], targets: Sequence[int]) -> Any:
    import jax

    return jax.lax.ppermute(x, axis, list(zip(sources, targets, strict=True)))


def _index(zero: Any, axis: str) -> Any:
    import jax

    return zero + jax.lax.axis_index(axis).astype(zero.dtype)


_INDEX = "spmd.axis_index"
define_annotation(_INDEX, _index)


# What results look like: of one chip's part.


def _resized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    return x.new_empty([*x.shape[:dim], size, *x.shape[dim + 1 :]])


def _fake_all_to_all(
    x: torch.Tensor, axes: Any, n: int, split_dim: int, concat_dim: int
) -> torch.Tensor:
    split = _resized(x, split_dim, x.shape[split_dim] // n)
    return _resized(split, concat_dim, split.shape[concat_dim] * n)


_FAKES: dict[str, Any] = {
    "psum": lambda x, axes: torch.empty_like(x),
    "pmax": lambda x, axes: torch.empty_like(x),
    "pmin": lambda x, axes: torch.empty_like(x),
    "all_gather": lambda x, axes, n, dim: _resized(x, dim, x.shape[dim] * n),
    "reduce_scatter": lambda x, axes, n, dim: _resized(x, dim, x.shape[dim] // n),
    "all_to_all": _fake_all_to_all,
    "ppermute": lambda x, axis, sources, targets: torch.empty_like(x),
}

# Gradients: of each what it needs is what it was called with, and of `pmax` and `pmin` what they gave.


def _shared_by_who_has_it(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    x, found = ctx.saved_tensors
    axes = ctx.args[0]
    has_it = (x == found).to(grad.dtype)
    return has_it * _ops.psum(grad, axes) / _ops.psum(has_it, axes), None


_GRADIENTS: dict[str, Any] = {
    "psum": lambda g, axes: (_ops.psum(g, axes), None),
    "all_gather": lambda g, axes, n, dim: (
        _ops.reduce_scatter(g, axes, n, dim),
        *[None] * 3,
    ),
    "reduce_scatter": lambda g, axes, n, dim: (_ops.all_gather(g, axes, n, dim), *[None] * 3),
    "all_to_all": lambda g, axes, n, split, concat: (
        _ops.all_to_all(g, axes, n, concat, split),
        *[None] * 4,
    ),
    "ppermute": lambda g, axis, sources, targets: (
        _ops.ppermute(g, axis, targets, sources),
        *[None] * 3,
    ),
}


def _keep_arguments(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.args = inputs[1:]


def _keep_what_it_gave(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.args = inputs[1:]
    ctx.save_for_backward(inputs[0], output)


def _backward(gradient: Any) -> Any:
    return lambda ctx, grad: gradient(grad, *ctx.args)


for _name, _fake in _FAKES.items():
    _library.impl(_name, _fake, "Meta")
for _name, _gradient in _GRADIENTS.items():
    torch.library.register_autograd(
        f"torch_pjrt_spmd::{_name}",
        _backward(_gradient),
        setup_context=_keep_arguments,
        lib=_library,
    )
for _name in ("pmax", "pmin"):
    torch.library.register_autograd(
        f"torch_pjrt_spmd::{_name}",
        _shared_by_who_has_it,
        setup_context=_keep_what_it_gave,
        lib=_library,
    )
