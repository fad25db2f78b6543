"""Products with weights of few bits, in JAX. No rule makes a whole weight wide.

Where a compiler does not fuse the widening of a weight into the product, the product is a loop over tiles of
the weight's rows: a tile is widened, multiplied, and forgotten. What XLA does (benchmarks/quant.py):

    CPU     fuses nothing into a product. int8 by int8 is fast from two rows of the input on; of one row it
            widens the weight, so there are at least two. A few rows of floats are products of integers, too:
            of their digits.
    TPU     fuses int8 and float8; of one row it adds up products one by one, so there are at least eight. A
            weight with a scale for each group goes another way (`grouped.py`).
    GPU     fuses int8 and multiplies float8 by itself. A few rows by groups are one kernel, which unpacks,
            multiplies and adds up.

`lax.platform_dependent` chooses, so one exported program has the right product for each platform.

Each tile takes rows from all parts of the weight alike, so that a weight whose rows are spread over up to 16
chips stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt_quant.grouped import Numbers, grouped, of_int4, of_int8, of_nf4
from torch_pjrt_quant.packing import FLOAT8_MAX, NF4

Array = jax.Array
Widen = Callable[..., Array]

# A tile that is widened to float32 is about this large.
TILE_BYTES = 1 << 20
# A tile on GPUs, where each step of a loop is some kernels; a weight has at least four.
GPU_TILE_BYTES = 1 << 24
# int8 by int8 has at least so many rows on CPU, all products so many on TPUs.
LEAST_ROWS, LEAST_ROWS_TPU = 2, 8
# So many rows by groups are one kernel on GPUs, which unpacks the weight for each of them.
ONE_KERNEL_ROWS = 4
# So many rows of floats, of so many columns (sums are int32), are multiplied digit by digit on CPU.
MOST_ROWS, MOST_COLUMNS = 8, 1 << 17


def widened(dtype: Any) -> Widen:
    """Rows of int8 (or of float8, as bytes) and their scales, by row or by group, as rows of `dtype`."""

    def widen(weight: Array, scale: Array) -> Array:
        wide = float8_of(weight) if weight.dtype == jnp.uint8 else weight.astype(jnp.float32)
        groups = wide.reshape(len(weight), scale.size // len(scale), -1)
        return (groups * scale.reshape(*groups.shape[:2], 1)).astype(dtype).reshape(weight.shape)

    return widen


def float8_of(numbers: Array) -> Array:
    """float8_e4m3fn that is given as bytes, in float32, by its bits: a CPU has no instruction for it."""
    bits = numbers.astype(jnp.uint32)
    size = bits & 0x7F
    normal = lax.bitcast_convert_type((size << 20) + jnp.uint32(120 << 23), jnp.float32)
    small = size.astype(jnp.int32).astype(jnp.float32) * jnp.float32(2**-9)
    value = jnp.where(size < 8, small, jnp.where(size == 0x7F, jnp.nan, normal))
    return jnp.where(bits >= 0x80, -value, value)


def widened_int4(dtype: Any) -> Widen:
    """Packed rows, their scales and zeros as rows of `dtype`."""

    def widen(packed: Array, scale: Array, zero: Array | None = None) -> Array:
        numbers = _unpacked(packed, scale).astype(jnp.int32).astype(jnp.float32)
        numbers = numbers - (8 if zero is None else zero.astype(jnp.float32)[..., None])
        wide = numbers * scale.astype(jnp.float32)[..., None]
        return wide.astype(dtype).reshape(len(packed), -1)

    return widen


def widened_nf4(dtype: Any) -> Widen:
    """Packed rows and their scales as rows of `dtype`. (CPUs and GPUs look values up fast.)"""

    def widen(packed: Array, scale: Array) -> Array:
        values = jnp.asarray(NF4, jnp.float32)[_unpacked(packed, scale).astype(jnp.int32)]
        return (
            (values * scale.astype(jnp.float32)[..., None]).astype(dtype).reshape(len(packed), -1)
        )

    return widen


def _unpacked(packed: Array, scale: Array) -> Array:
    groups = packed.reshape(*scale.shape, -1)
    return jnp.concatenate([groups & 15, groups >> 4], -1)


def tiled(x: Array, parts: Sequence[Array], widen: Widen, tile_bytes: int = TILE_BYTES) -> Array:
    """`x` (rows, columns) by a weight whose rows are `widen(*parts)`: float32 (rows, weight's rows)."""

    def step(tile: Sequence[Array]) -> Array:
        wide = widen(*tile)
        return lax.dot_general(
            x, wide, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
        )

    n = parts[0].shape[0]
    ways, height, count = _tiles(n, x.shape[1], tile_bytes=tile_bytes)
    if count == 1:
        return step(parts)
    rows = height * count
    whole = [p.reshape(ways, n // ways, *p.shape[1:]) for p in parts]

    def body(i: Any, result: Array) -> Array:
        at = i * height
        tile = [lax.dynamic_slice_in_dim(p, at, height, 1) for p in whole]
        product = step([p.reshape(ways * height, *p.shape[2:]) for p in tile])
        product = product.reshape(x.shape[0], ways, height)
        return lax.dynamic_update_slice_in_dim(result, product, at, 2)

    result = jnp.zeros((x.shape[0], ways, n // ways), jnp.float32)
    result = lax.fori_loop(0, count, body, result)
    if rows < n // ways:
        rest = [p[:, rows:].reshape(-1, *p.shape[2:]) for p in whole]
        last = step(rest).reshape(x.shape[0], ways, n // ways - rows)
        result = result.at[:, :, rows:].set(last)
    return result.reshape(x.shape[0], n)


def tiled_transposed(gradient: Array, parts: Sequence[Array], widen: Widen, columns: int) -> Array:
    """`gradient` (rows, weight's rows) by the weight itself: float32 (rows, columns)."""

    def step(part: Array, tile: Sequence[Array]) -> Array:
        wide = widen(*tile)
        return lax.dot_general(
            part, wide, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )

    n = parts[0].shape[0]
    _, height, count = _tiles(n, columns, ways=1)
    if count == 1:
        return step(gradient, parts)

    def body(i: Any, result: Array) -> Array:
        at = i * height
        tile = [lax.dynamic_slice_in_dim(p, at, height, 0) for p in parts]
        return result + step(lax.dynamic_slice_in_dim(gradient, at, height, 1), tile)

    result = lax.fori_loop(0, count, body, jnp.zeros((gradient.shape[0], columns), jnp.float32))
    rows = height * count
    if rows < n:
        result = result + step(gradient[:, rows:], [p[rows:] for p in parts])
    return result


def _tiles(
    n: int, columns: int, ways: int | None = None, tile_bytes: int = TILE_BYTES
) -> tuple[int, int, int]:
    """Into how many parts the rows are dealt, how many rows of each a tile has, and how many tiles."""
    ways = ways or next(w for w in (16, 8, 4, 2, 1) if n % w == 0)
    most = max(tile_bytes // (4 * columns * ways), 1)
    height = min(most, n // ways)
    return ways, height, n // ways // height


def by_groups(x: Array, parts: Sequence[Array], widen: Widen, numbers: Numbers) -> Array:
    """`x` (rows, columns) by a weight with a scale for each group."""
    return lax.platform_dependent(
        x,
        *parts,
        tpu=lambda a, *p: grouped(a, p, numbers),
        cuda=lambda a, *p: on_gpus(a, p, widen),
        default=lambda a, w, *p: tiled(a, (_bytes(w), *p), widen),
    )


def on_gpus(x: Array, parts: Sequence[Array], widen: Widen) -> Array:
    rows, columns = x.shape
    if isinstance(rows, int) and rows <= ONE_KERNEL_ROWS:
        products = x.astype(jnp.float32)[:, None] * widen(*parts).astype(jnp.float32)
        return products.sum(-1)
    quarter = parts[0].shape[0] * columns  # bytes, as a number has four
    return tiled(x, parts, widen, min(GPU_TILE_BYTES, max(quarter, TILE_BYTES)))


def _plain(x: Array, weight: Array, scale: Array) -> Array:
    """Where the compiler fuses the widening: the scale is applied to the product."""
    y = lax.dot_general(
        x, weight.astype(x.dtype), (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    return y * scale


def _finished(y: Array, x: Array, bias: Array | None) -> Array:
    if bias is not None:
        y = y + bias.astype(jnp.float32)
    return y.astype(x.dtype).reshape(*x.shape[:-1], y.shape[-1])


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def linear_int8(x: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    scale = scale.astype(jnp.float32)
    if scale.ndim == 2:  # one for each group: not a factor of the product
        y = by_groups(_rows(x), (weight, scale), widened(x.dtype), of_int8)
        return _finished(y, x, bias)
    y = lax.platform_dependent(
        _rows(x),
        weight,
        scale,
        cpu=_by_digits if _is_short(_rows(x)) else _by_tiles,
        tpu=_eight_rows(_plain),
        default=_plain,
    )
    return _finished(y, x, bias)


def _by_tiles(x: Array, weight: Array, scale: Array) -> Array:
    return tiled(x, (weight, scale), widened(x.dtype))


def _is_short(x: Array) -> bool:
    rows, columns = x.shape
    return isinstance(rows, int) and 0 < rows <= MOST_ROWS and 0 < columns <= MOST_COLUMNS


def _by_digits(x: Array, weight: Array, scale: Array) -> Array:
    """Each row of `x` as three of int8, of which each has 1/254 of the one before: some 23 bits.

    So the weight stays int8, and is read once. What is lost is at most 2**-23 of the largest number of a
    row, as much as float32 loses where it adds that. Rows that are not finite have no digits.
    """

    def product(x: Array, weight: Array, scale: Array) -> Array:
        count = len(x)
        rest = x.astype(jnp.float32)
        largest = jnp.max(jnp.abs(rest), -1, keepdims=True)
        factor = jnp.maximum(largest / 127, jnp.finfo(jnp.float32).tiny)
        rest = rest / factor
        digits = []
        for _ in range(3):
            digits.append(jnp.round(rest))
            rest = (rest - digits[-1]) * 254
        numbers = jnp.concatenate(digits).astype(jnp.int8)
        y = integers(numbers, weight).astype(jnp.float32).reshape(3, count, len(weight))
        return (y[0] + (y[1] + y[2] / 254) / 254) * (factor * scale)

    is_finite = jnp.all(jnp.isfinite(x))
    return lax.cond(is_finite, product, _by_tiles, x, weight, scale)


def linear_int8_dynamic(x: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    """Each row of the input becomes int8, too; sums are int32."""
    rows = _rows(x).astype(jnp.float32)
    factor = jnp.maximum(jnp.max(jnp.abs(rows), -1, keepdims=True) / 127, 1e-12)
    numbers = jnp.clip(jnp.round(rows / factor), -127, 127).astype(jnp.int8)
    y = many_integers(numbers, weight)
    return _finished(y.astype(jnp.float32) * factor * scale.astype(jnp.float32), x, bias)


def integers(x: Array, weight: Array) -> Array:
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)


def many_integers(x: Array, weight: Array) -> Array:
    """The same, of as many rows as the platform multiplies fast."""
    return lax.platform_dependent(
        x, weight, cpu=enough_rows, tpu=_eight_rows(integers), default=integers
    )


def enough_rows(x: Array, weight: Array) -> Array:
    return _padded(integers, LEAST_ROWS)(x, weight)


def _eight_rows(product: Callable[..., Array]) -> Callable[..., Array]:
    return _padded(product, LEAST_ROWS_TPU)


def _padded(product: Callable[..., Array], least: int) -> Callable[..., Array]:
    """The product of at least so many rows, of which what there are is taken."""

    def padded(x: Array, *parts: Array) -> Array:
        count = x.shape[0]
        more = max(least - count, 0) if isinstance(count, int) else least
        return (
            product(jnp.pad(x, ((0, more), (0, 0))), *parts)[:count] if more else product(x, *parts)
        )

    return padded


def linear_int4(
    x: Array, weight: Array, scale: Array, zero: Array | None = None, bias: Array | None = None
) -> Array:
    parts = (weight, scale) if zero is None else (weight, scale, zero)
    return _finished(by_groups(_rows(x), parts, widened_int4(x.dtype), of_int4), x, bias)


def linear_nf4(x: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    y = by_groups(_rows(x), (weight, scale), widened_nf4(x.dtype), of_nf4)
    return _finished(y, x, bias)


def linear_float8(x: Array, weight: Array, scale: Array, bias: Array | None = None) -> Array:
    scale = scale.astype(jnp.float32)
    if scale.ndim == 2:
        y = by_groups(_rows(x), (weight, scale), widened(x.dtype), of_int8)
        return _finished(y, x, bias)
    y = lax.platform_dependent(
        _rows(x),
        weight,
        scale,
        cuda=_plain,
        tpu=_eight_rows(_plain),
        default=lambda a, w, s: tiled(a, (_bytes(w), s), widened(a.dtype)),
    )
    return _finished(y, x, bias)


def linear_float8_dynamic(
    x: Array, weight: Array, scale: Array, bias: Array | None = None
) -> Array:
    """Each row of the input becomes float8, too. Without such a product, both are widened by tiles."""
    rows = _rows(x).astype(jnp.float32)
    factor = jnp.maximum(jnp.max(jnp.abs(rows), -1, keepdims=True) / FLOAT8_MAX, 1e-12)
    numbers = (rows / factor).astype(jnp.float8_e4m3fn)
    ones = jnp.ones(weight.shape[:1], jnp.float32)

    def by_tiles(a: Array, w: Array, s: Array) -> Array:
        return tiled(a.astype(jnp.bfloat16), (_bytes(w), s), widened(jnp.bfloat16))

    def as_bfloat16(a: Array, w: Array) -> Array:
        return _scaled(a.astype(jnp.bfloat16), w.astype(jnp.bfloat16))

    y = lax.platform_dependent(
        numbers,
        weight,
        ones,
        cuda=lambda a, w, s: _scaled(a, w),
        tpu=lambda a, w, s: _eight_rows(as_bfloat16)(a, w),
        default=by_tiles,
    )
    return _finished(y * factor * scale.astype(jnp.float32), x, bias)


def product_float8(x: Array, other: Array, scale: Array) -> Array:
    """Both of some float8, of which GPUs multiply all pairs but two of e5m2."""

    def widened_to(dtype: Any) -> Callable[[Array, Array], Array]:
        return lambda a, b: _scaled(a.astype(dtype), b.astype(dtype))

    y = lax.platform_dependent(
        x, other, cuda=_scaled, tpu=widened_to(jnp.bfloat16), default=widened_to(jnp.float32)
    )
    return y * scale


def _bytes(weight: Array) -> Array:
    """float8 as bytes: on CPU, XLA would widen all of it in front of a loop. Integers stay."""
    if jnp.issubdtype(weight.dtype, jnp.floating):
        return lax.bitcast_convert_type(weight, jnp.uint8)
    return weight


def _scaled(x: Array, weight: Array) -> Array:
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def gradient_int8(gradient: Array, weight: Array, scale: Array) -> Array:
    return _gradient(gradient, (_bytes(weight), scale), widened(gradient.dtype), weight.shape[1])


def gradient_int4(gradient: Array, weight: Array, scale: Array, zero: Array | None = None) -> Array:
    parts = (weight, scale) if zero is None else (weight, scale, zero)
    return _gradient(gradient, parts, widened_int4(gradient.dtype), 2 * weight.shape[1])


def gradient_nf4(gradient: Array, weight: Array, scale: Array) -> Array:
    widen = widened_nf4(gradient.dtype)
    return _gradient(gradient, (weight, scale), widen, 2 * weight.shape[1])


def _gradient(gradient: Array, parts: Sequence[Array], widen: Widen, columns: int) -> Array:
    y = tiled_transposed(_rows(gradient), parts, widen, columns)
    return y.astype(gradient.dtype).reshape(*gradient.shape[:-1], columns)
