"""What `ReduceOp`s do, as functions under `shard_map`, exact in each dtype.

`axes` are the names of those along which the ranks of the group lie (`lines.axes_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

Axes = tuple[str, ...]

Kind: Any = dist.ReduceOp.RedOpType

_GATHERED: dict[Any, str] = {
    Kind.PRODUCT: "prod",
    Kind.BAND: "bitwise_and",
    Kind.BOR: "bitwise_or",
    Kind.BXOR: "bitwise_xor",
}


def all_reduced(axes: Axes, name: str, n: int, factor: float = 1.0) -> Callable[[Any], Any]:
    """The reduction over n ranks, on each of them; `name` is that of a `ReduceOp`."""
    kind = getattr(Kind, name)
    if kind in (Kind.SUM, Kind.AVG, Kind.PREMUL_SUM):
        return lambda x: _finished(kind, n, x.dtype, _summed(axes, _scaled(kind, x, factor)))
    if kind in (Kind.MIN, Kind.MAX):
        return lambda x: _extreme(axes, kind, x)
    return lambda x: reduced(name, n, factor)(_all_gathered(axes, x))


def reduced(name: str, n: int, factor: float = 1.0) -> Callable[[Any], Any]:
    """The reduction of an array over its first dim, of which each of n ranks has given an element."""
    kind = getattr(Kind, name)

    def function(x: Any) -> Any:
        import jax.numpy as jnp

        if kind in (Kind.SUM, Kind.AVG, Kind.PREMUL_SUM):
            whole = _scaled(kind, x, factor)
            total = whole.any(0) if whole.dtype == bool else whole.sum(0, dtype=whole.dtype)
            return _finished(kind, n, x.dtype, total)
        if kind in (Kind.MIN, Kind.MAX):
            return x.min(0) if kind == Kind.MIN else x.max(0)
        if kind == Kind.PRODUCT:
            return x.all(0) if x.dtype == bool else x.prod(0, dtype=x.dtype)
        return getattr(jnp, _GATHERED[kind]).reduce(x, 0)

    return function


def from_root(axes: Axes, x: Any, root: int) -> Any:
    """What the root gives, bit by bit, on each rank."""
    import jax
    import jax.numpy as jnp

    bits = as_bits(x)
    mine = jax.lax.axis_index(axes) == root
    sent = jax.lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), axes)
    return from_bits(sent, x.dtype)


def scattered_from_root(axes: Axes, x: Any, root: int) -> Any:
    """Of what the root gives each rank its element along the first dim, bit by bit."""
    import jax
    import jax.numpy as jnp

    bits = as_bits(x)
    mine = jax.lax.axis_index(axes) == root
    sent = jax.lax.psum_scatter(jnp.where(mine, bits, jnp.zeros_like(bits)), axes)
    return from_bits(sent, x.dtype)


def as_bits(x: Any) -> Any:
    """An array of any dtype as unsigned integers; complex numbers have one more dim."""
    import jax
    import jax.numpy as jnp

    if x.dtype == bool:
        return x.astype(jnp.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return as_bits(jnp.stack([x.real, x.imag], -1))
    if jnp.issubdtype(x.dtype, jnp.integer):
        return x
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))


def from_bits(bits: Any, dtype: Any) -> Any:
    """What `as_bits` was given."""
    import jax
    import jax.numpy as jnp

    if dtype.kind == "b":
        return bits != 0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        part = jnp.dtype(jnp.float32 if dtype == jnp.complex64 else jnp.float64)
        both = from_bits(bits, part)
        return jax.lax.complex(both[..., 0], both[..., 1])
    if jnp.issubdtype(dtype, jnp.integer):
        return bits
    return jax.lax.bitcast_convert_type(bits, dtype)


def _all_gathered(axes: Axes, x: Any) -> Any:
    import jax

    return from_bits(jax.lax.all_gather(as_bits(x), axes), x.dtype)


def _summed(axes: Axes, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    if x.dtype == bool:
        return jax.lax.psum(x.astype(jnp.int32), axes) > 0
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        both = jax.lax.psum(jnp.stack([x.real, x.imag], -1), axes)
        return jax.lax.complex(both[..., 0], both[..., 1])
    return jax.lax.psum(x, axes)


def _extreme(axes: Axes, kind: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    of = jax.lax.pmin if kind == Kind.MIN else jax.lax.pmax
    return of(x.astype(jnp.uint8), axes) != 0 if x.dtype == bool else of(x, axes)


def _scaled(kind: Any, x: Any, factor: float) -> Any:
    return x * x.dtype.type(factor) if kind == Kind.PREMUL_SUM else x


def _finished(kind: Any, n: int, dtype: Any, total: Any) -> Any:
    """A mean from the sum; of integers, as PyTorch's other backends have it, rounded to 0."""
    import jax
    import jax.numpy as jnp

    if kind != Kind.AVG:
        return total
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.lax.div(total, jnp.asarray(n, dtype))
    return (total / n).astype(dtype)
