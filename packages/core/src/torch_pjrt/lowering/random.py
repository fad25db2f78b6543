"""Lowerings that draw random numbers.

What every rule here keeps:
    key    is all the randomness there is: one key, one result.
    draws  have as many random bits as PyTorch's: 24 for float32, 53 for float64, 11 for float16,
           8 for bfloat16, so that a uniform number is never 1.
    self   of an operator that fills a tensor gives shape and dtype only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes, operators
from torch_pjrt.lowering.promote import as_dtype, default_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

Array = jax.Array
Shape = Sequence[int]

UINT32, UINT64, INT64 = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.int64)
FEW = 1 << 20  # so many values 32 bits choose among with a bias of less than 1 in 4096
MOST_COMPARED = 1 << 24

table = LoweringTable("random")


def _is_float(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, np.floating)


def _is_complex(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, np.complexfloating)


def _digits(dtype: np.dtype) -> int:
    """How many bits the significand of a floating dtype has."""
    return int(jnp.finfo(dtype).nmant) + 1


def _dtype(dtype: torch.dtype | None) -> np.dtype:
    return dtypes.to_jax(default_dtype() if dtype is None else dtype)


def _unit(key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Uniform in [0, 1) with the bits that `dtype` has room for, in the dtype of arithmetic."""
    wide, digits = opmath(dtype), _digits(dtype)
    source = UINT64 if digits > 32 else UINT32
    bits = jax.random.bits(key, tuple(shape), source)
    bits = lax.shift_right_logical(bits, as_dtype(8 * source.itemsize - digits, source))
    return as_dtype(bits, wide) * as_dtype(2.0**-digits, wide)


def _whole(key: Array, shape: Shape, low: int, count: int, dtype: np.dtype) -> Array:
    """Uniform among the `count` integers from `low` on."""
    if count <= FEW:
        bits = as_dtype(jax.random.bits(key, tuple(shape), UINT32), UINT64)
        position = lax.shift_right_logical(bits * as_dtype(count, UINT64), as_dtype(32, UINT64))
    else:
        position = jax.random.bits(key, tuple(shape), UINT64)
        if count < 1 << 64:
            position = lax.rem(position, as_dtype(count, UINT64))
    return as_dtype(as_dtype(position, INT64) + as_dtype(low, INT64), dtype)


def _most(dtype: np.dtype) -> int:
    """The greatest integer that `random_` gives: up to it, a floating dtype knows every integer."""
    if dtype == np.bool_:
        return 1
    return 1 << _digits(dtype) if _is_float(dtype) else int(np.iinfo(dtype).max)


def _gaussian(key: Array, shape: Shape, dtype: np.dtype) -> Array:
    """Mean 0, variance 1 (of both parts together), in the dtype arithmetic runs in."""
    return jax.random.normal(key, tuple(shape), opmath(dtype))


# Factories. `dtype` of None is the default dtype, int64 for whole numbers.


@table.lowers(aten.rand.default, aten.rand.generator, random=True)
def rand(key: Array, size: Shape, *, dtype: torch.dtype | None = None) -> Array:
    like = _dtype(dtype)
    if _is_complex(like):
        part = np.dtype(np.float32 if like == np.complex64 else np.float64)
        real, imag = jax.random.split(key)
        return lax.complex(_unit(real, size, part), _unit(imag, size, part))
    return as_dtype(_unit(key, size, like), like)


@table.lowers(aten.randn.default, aten.randn.generator, random=True)
def randn(key: Array, size: Shape, *, dtype: torch.dtype | None = None) -> Array:
    like = _dtype(dtype)
    return as_dtype(_gaussian(key, size, like), like)


@table.lowers(aten.randint.default, aten.randint.generator, random=True)
def randint(
    key: Array, high: int, size: Shape, *, dtype: torch.dtype | None = torch.int64
) -> Array:
    return _whole(key, size, 0, high, dtypes.to_jax(dtype or torch.int64))


@table.lowers(aten.randint.low, aten.randint.low_generator, random=True)
def randint_low(
    key: Array, low: int, high: int, size: Shape, *, dtype: torch.dtype | None = torch.int64
) -> Array:
    return _whole(key, size, low, high - low, dtypes.to_jax(dtype or torch.int64))


@table.lowers(aten.randperm.default, aten.randperm.generator, random=True)
def randperm(key: Array, n: int, *, dtype: torch.dtype | None = torch.int64) -> Array:
    """The order in which 64 random bits for each element sort."""
    bits = jax.random.bits(key, (n,), UINT64)
    _, order = lax.sort((bits, lax.iota(np.dtype(np.int32), n)), num_keys=1)
    return as_dtype(order, dtypes.to_jax(dtype or torch.int64))


# Operators that fill a tensor


@table.lowers(aten.uniform.default, random=True)
def uniform(key: Array, self: Array, from_: Any = 0.0, to: Any = 1.0, **named: Any) -> Array:
    """In [from, to), both parts of complex numbers. `from`, a word of Python's, may arrive by its name."""
    if self.dtype.kind == "c":
        keys = jax.random.split(key)
        parts = [uniform(k, lax.real(self), from_, to, **named) for k in keys]
        return lax.complex(*parts)
    unit = _unit(key, self.shape, self.dtype)
    low = as_dtype(named.get("from", from_), unit.dtype)
    return as_dtype(unit * (as_dtype(to, unit.dtype) - low) + low, self.dtype)


@table.lowers(aten.normal_functional.default, random=True)
def normal_functional(key: Array, self: Array, mean: Any = 0.0, std: Any = 1.0) -> Array:
    wide = opmath(self.dtype)
    values = _gaussian(key, self.shape, self.dtype)
    return as_dtype(values * as_dtype(std, wide) + as_dtype(mean, wide), self.dtype)


@table.lowers(aten.log_normal.default, random=True)
def log_normal(key: Array, self: Array, mean: Any = 1.0, std: Any = 2.0) -> Array:
    values = _gaussian(key, self.shape, self.dtype)
    exponent = values * as_dtype(std, values.dtype) + as_dtype(mean, values.dtype)
    return as_dtype(lax.exp(exponent), self.dtype)


@table.lowers(aten.exponential.default, random=True)
def exponential(key: Array, self: Array, lambd: Any = 1.0) -> Array:
    """Never 0, as PyTorch promises to those who divide by it or take its logarithm."""
    return as_dtype(_waiting(key, self.shape, self.dtype) / lambd, self.dtype)


def _waiting(key: Array, shape: Shape, dtype: np.dtype) -> Array:
    unit = _unit(key, shape, dtype)
    least = as_dtype(2.0 ** -(_digits(dtype) + 1), unit.dtype)
    return -lax.log1p(-lax.max(unit, lax.broadcast(least, unit.shape)))


@table.lowers(aten.cauchy.default, random=True)
def cauchy(key: Array, self: Array, median: Any = 0.0, sigma: Any = 1.0) -> Array:
    angle = math.pi * (_unit(key, self.shape, self.dtype) - 0.5)
    result = as_dtype(median, angle.dtype) + as_dtype(sigma, angle.dtype) * lax.tan(angle)
    return as_dtype(result, self.dtype)


@table.lowers(aten.geometric.default, random=True)
def geometric(key: Array, self: Array, p: Any) -> Array:
    """How many trials until the first success, 1 at least."""
    like = opmath(self.dtype) if _is_float(self.dtype) else np.dtype(np.float32)
    waiting = _waiting(key, self.shape, like)
    trials = lax.ceil(waiting / -lax.log1p(-as_dtype(p, like)))
    return as_dtype(lax.max(trials, lax.full_like(trials, 1)), self.dtype)


@table.lowers(aten.random.default, random=True)
def random(key: Array, self: Array) -> Array:
    most = _most(self.dtype)
    return _whole(key, self.shape, 0, most + 1, self.dtype)


@table.lowers(aten.random.to, random=True)
def random_to(key: Array, self: Array, to: int) -> Array:
    return _whole(key, self.shape, 0, to, self.dtype)


@table.lowers(getattr(aten.random, "from"), random=True)
def random_from(
    key: Array, self: Array, from_: int = 0, to: int | None = None, **named: int
) -> Array:
    """In [from, to), or up to the greatest that the dtype holds."""
    low = named.get("from", from_)
    end = _most(self.dtype) + 1 if to is None else to
    return _whole(key, self.shape, low, end - low, self.dtype)


# Distributions whose parameters are tensors


def _chosen(key: Array, probability: Array, shape: Shape) -> Array:
    unit = _unit(key, shape, opmath(probability.dtype))
    return unit < as_dtype(probability, unit.dtype)


@table.lowers(aten.bernoulli.default, random=True)
def bernoulli(key: Array, self: Array) -> Array:
    return as_dtype(_chosen(key, self, self.shape), self.dtype)


@table.lowers(aten.bernoulli.p, random=True)
def bernoulli_p(key: Array, self: Array, p: Any) -> Array:
    return as_dtype(_chosen(key, as_dtype(p, np.dtype(np.float32)), self.shape), self.dtype)


@table.lowers(aten.bernoulli.Tensor, random=True)
def bernoulli_tensor(key: Array, self: Array, p: Array) -> Array:
    return as_dtype(_chosen(key, p, self.shape), self.dtype)


def _normal(key: Array, mean: Any, std: Any, shape: Shape, dtype: np.dtype) -> Array:
    wide = opmath(dtype)
    values = _gaussian(key, shape, dtype)
    return as_dtype(values * as_dtype(std, wide) + as_dtype(mean, wide), dtype)


@table.lowers(aten.normal.Tensor_Tensor, random=True)
def normal_tensor_tensor(key: Array, mean: Array, std: Array) -> Array:
    shape = jnp.broadcast_shapes(mean.shape, std.shape)
    return _normal(key, mean, std, shape, mean.dtype)


@table.lowers(aten.normal.Tensor_float, random=True)
def normal_tensor_float(key: Array, mean: Array, std: Any = 1.0) -> Array:
    return _normal(key, mean, std, mean.shape, mean.dtype)


@table.lowers(aten.normal.float_Tensor, random=True)
def normal_float_tensor(key: Array, mean: Any, std: Array) -> Array:
    return _normal(key, mean, std, std.shape, std.dtype)


@table.lowers(aten.normal.float_float, random=True)
def normal_float_float(
    key: Array, mean: Any, std: Any, size: Shape, *, dtype: torch.dtype | None = None
) -> Array:
    return _normal(key, mean, std, size, _dtype(dtype))


@table.lowers(aten.multinomial.default, random=True)
def multinomial(key: Array, self: Array, num_samples: int, replacement: bool = False) -> Array:
    """Classes drawn with the weights of each row. With replacement, none of weight 0 is."""
    weights = as_dtype(self, opmath(self.dtype))
    if not replacement or num_samples == 1:
        # A race: each class arrives after an exponential time, sooner the more it weighs.
        times = _waiting(key, self.shape, weights.dtype)
        _, winners = lax.top_k(weights / times, num_samples)
        return as_dtype(winners, INT64)
    until = lax.cumsum(weights, weights.ndim - 1)
    total = lax.slice_in_dim(until, until.shape[-1] - 1, None, axis=until.ndim - 1)
    draws = _unit(key, (*self.shape[:-1], num_samples), weights.dtype) * total
    if num_samples * self.size <= MOST_COMPARED:
        passed = lax.expand_dims(until, (until.ndim - 1,)) <= lax.expand_dims(draws, (draws.ndim,))
        positions = lax.reduce_sum(as_dtype(passed, np.dtype(np.int32)), (passed.ndim - 1,))
    else:
        search = lambda row, values: jnp.searchsorted(row, values, side="right")  # noqa: E731
        positions = (jax.vmap(search) if until.ndim == 2 else search)(until, draws)
    # Rounding may lift a draw to the total: it belongs to the last class that weighs anything.
    last = jnp.sum(until < total, axis=-1, keepdims=True, dtype=positions.dtype)
    return as_dtype(lax.min(positions, jnp.broadcast_to(last, positions.shape)), INT64)


@table.lowers(operators.weights_fault)
def weights_fault(self: Array) -> Array:
    """What `multinomial` refuses to draw by; see `operators`."""
    dims = tuple(range(self.ndim))
    zero, one, two, three = (np.int64(n) for n in range(4))
    is_bad = lax.reduce_or(lax.bitwise_not(self >= 0), dims)
    is_infinite = lax.reduce_or(lax.eq(self, lax.full_like(self, np.inf)), dims)
    is_nothing = jnp.any(jnp.all(self == 0, axis=-1))
    fault = lax.select(is_infinite, two, lax.select(is_nothing, three, zero))
    return lax.select(is_bad, one, fault)


@table.lowers(aten.poisson.default, random=True)
def poisson(key: Array, self: Array) -> Array:
    rate = as_dtype(self, opmath(self.dtype))
    return as_dtype(jax.random.poisson(key, rate, self.shape, INT64), self.dtype)


@table.lowers(aten.binomial.default, random=True)
def binomial(key: Array, count: Array, prob: Array) -> Array:
    """What is certain is not drawn: of nan or an infinite count, no draw would end."""
    dtype, wide = count.dtype, opmath(count.dtype)
    count, prob = as_dtype(count, wide), as_dtype(prob, wide)
    nothing = (count <= 0) | (prob <= 0)
    certain = nothing | ~((count < np.inf) & (prob < 1))
    n, p = jnp.where(certain, 1, count), jnp.where(certain, 0.5, prob)
    drawn = jax.random.binomial(key, n, p, n.shape, dtype=wide)
    known = jnp.where(prob != prob, prob, count)  # all of them, or nan
    return as_dtype(jnp.where(nothing, 0, jnp.where(certain, known, drawn)), dtype)


@table.lowers(aten._standard_gamma.default, random=True)
def _standard_gamma(key: Array, self: Array) -> Array:
    wide = opmath(self.dtype)
    return as_dtype(jax.random.gamma(key, as_dtype(self, wide), self.shape, wide), self.dtype)


@table.lowers(aten._sample_dirichlet.default, random=True)
def _sample_dirichlet(key: Array, self: Array) -> Array:
    """Gammas divided by their sum, by way of logarithms: small concentrations would give 0 / 0."""
    wide = opmath(self.dtype)
    logarithms = jax.random.loggamma(key, as_dtype(self, wide), self.shape, wide)
    return as_dtype(jax.nn.softmax(logarithms, -1), self.dtype)


@table.lowers(aten.rrelu_with_noise_functional.default, random=True, static=("lower", "upper"))
def rrelu_with_noise_functional(
    key: Array,
    self: Array,
    noise: Array,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
) -> tuple[Array, Array]:
    """Negative numbers times a random slope, their mean slope when not training; and the slopes."""
    negative = self <= 0
    if not training:
        return lax.select(negative, self * as_dtype((lower + upper) / 2, self.dtype), self), noise
    slopes = _unit(key, self.shape, self.dtype) * (upper - lower) + lower
    slopes = as_dtype(slopes, self.dtype)
    slopes = lax.select(negative, slopes, lax.full_like(slopes, 1))
    return self * slopes, slopes
