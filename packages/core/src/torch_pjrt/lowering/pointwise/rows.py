"""How a row of a pointwise table becomes a rule: promote the inputs, match their ranks, compute.

Conventions of every pointwise file:
    a number    a Python number or a 0-d weakly typed array; never looked at unless `static`.
    half        a float16 or bfloat16 input of an op with more than one rounding is computed in
                float32 and rounded once at the end, as PyTorch does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.cast import broadcast_to, cast
from torch_pjrt.lowering.promote import Array, Promote, computed_in, is_number, opmath, result_type
from torch_pjrt.lowering.table import Rule

Compute = Callable[..., Any]


def matched(arrays: Sequence[Array]) -> list[Array]:
    """The arrays with size-1 dimensions in front, so that all but the 0-d ones have one rank.

    `lax` broadcasts size-1 dimensions and 0-d operands of its binary functions by itself.
    """
    rank = max(x.ndim for x in arrays)
    return [x if x.ndim in (0, rank) else lax.broadcast_to_rank(x, rank) for x in arrays]


def filled(arrays: Sequence[Array]) -> list[Array]:
    """The arrays, all broadcast to one shape (`lax.select` and friends insist on it)."""
    shape = jnp.broadcast_shapes(*(x.shape for x in arrays))
    return [broadcast_to(x, shape) for x in arrays]


def in_float64(compute: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The same of two numbers, filled, in float64 where the device has it; in the dtype of the first."""

    @functools.wraps(compute)
    def wide(x: Array, y: Array) -> Array:
        dtype = np.dtype(np.float64) if dtypes.are_wide() else x.dtype
        result = compute(*(lax.convert_element_type(z, dtype) for z in filled([x, y])))
        return lax.convert_element_type(result, x.dtype)

    return wide


def select(condition: Array, x: Array, y: Array) -> Array:
    """`x` where `condition` holds, else `y`, broadcast. `x` and `y` have one dtype."""
    condition, x, y = filled([condition, x, y])
    return lax.select(condition, x, y)


def operands(
    values: Sequence[Any], kind: Promote = Promote.DEFAULT
) -> tuple[list[Array], np.dtype]:
    """The values in the dtype that the op computes in, with matching ranks; and that dtype."""
    dtype = dtypes.to_jax(computed_in(result_type(*values), kind))
    return matched([cast(x, dtype) for x in values]), dtype


def wide_operands(
    values: Sequence[Any], kind: Promote = Promote.DEFAULT, *, exact_numbers: bool = False
) -> tuple[list[Array], np.dtype]:
    """`operands`, but half ones are in float32; the dtype is still the one to round to.

    A number is rounded to half on the way, unless `exact_numbers`: PyTorch has ops of both sorts. There a
    0-d tensor after one with dims counts as a number.
    """
    dtype = dtypes.to_jax(computed_in(result_type(*values), kind))
    wide = opmath(dtype)
    if wide == dtype:
        return matched([cast(x, dtype) for x in values]), dtype
    has_dims = not is_number(values[0]) and values[0].ndim > 0
    exact = [
        exact_numbers and (is_number(x) or (has_dims and x.ndim == 0 and x.dtype.kind == "f"))
        for x in values
    ]
    return matched(
        [cast(x if keep else cast(x, dtype), wide) for x, keep in zip(values, exact, strict=True)]
    ), dtype


def rounded(x: Array, dtype: np.dtype) -> Array:
    """`x`, a result computed in float32, in the op's own dtype."""
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def constant(value: complex, like: Array) -> Array:
    """A 0-d array of a Python number in the dtype of `like`."""
    return cast(value, like.dtype)


def row(compute: Compute, kind: Promote = Promote.DEFAULT) -> Rule:
    """A rule for `compute`, one XLA instruction: it rounds once whatever the dtype is."""

    def rule(*tensors: Any) -> Array:
        return compute(*operands(tensors, kind)[0])

    return rule


def wide_row(compute: Compute, kind: Promote = Promote.DEFAULT) -> Rule:
    """A rule for `compute`, several instructions: half inputs are computed in float32."""

    def rule(*tensors: Any) -> Array:
        arrays, dtype = wide_operands(tensors, kind)
        return rounded(compute(*arrays), dtype)

    return rule


def is_literally(x: Any, value: float) -> bool:
    """Whether `x` is a Python number equal to `value`, and so known while tracing."""
    return not isinstance(x, jax.Array) and x == value
