"""PyTorch's type promotion, for lowering rules.

PyTorch sorts operands into three ranks: tensors with dimensions, 0-d tensors, Python numbers. A
lower rank changes the result only by its *category* (bool < integer < floating < complex), never
by its width. A 0-d weakly typed array counts as a Python number: that is what a number becomes
when it is an input of the program.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from torch_pjrt import dtypes

Array = jax.Array
Number = bool | int | float | complex

_E4M3 = dtypes.to_jax(torch.float8_e4m3fn) if dtypes.is_supported(torch.float8_e4m3fn) else None
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_LARGEST_E4M3 = 448
# Whether this PyTorch gives the largest number for what float8_e4m3fn has no room for; once it gave nan.
_SATURATES = bool(torch.tensor(1e4, device="cpu").to(torch.float8_e4m3fn).float() == _LARGEST_E4M3)

# PyTorch's default dtype when the operator whose rule is traced was called, if another is in force by now.
_default: ContextVar[torch.dtype | None] = ContextVar("default dtype", default=None)


def default_dtype() -> torch.dtype:
    """PyTorch's default dtype, for the operator whose rule is traced.

    >>> with with_default_dtype(torch.float64):
    ...     default_dtype()
    torch.float64
    """
    return _default.get() or torch.get_default_dtype()


@contextmanager
def with_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Rules traced within are of operators that were called while this was PyTorch's default dtype."""
    token = _default.set(dtype)
    try:
        yield
    finally:
        _default.reset(token)


class Promote(enum.Enum):
    """How an operator turns the common dtype of its inputs into the one it computes in.

    >>> arrays, dtype = promoted((jnp.ones(2, "int32"),), Promote.INT_TO_FLOAT)
    >>> dtype
    dtype('float32')
    """

    DEFAULT = "the common dtype"
    INT_TO_FLOAT = "integers and bools become the default float dtype"
    BOOL_TO_INT = "bools become int64"
    COMPLEX_TO_FLOAT = "compute in the common dtype; a complex result is real (abs)"
    ALWAYS_BOOL = "compute in the common dtype; the result is bool (comparisons)"


def is_number(x: Any) -> bool:
    """Whether `x` ranks as a Python number: one, or a 0-d weakly typed array."""
    if isinstance(x, (bool, int, float, complex)):
        return True
    return getattr(x, "weak_type", False) and x.ndim == 0


def number_dtype(x: Any) -> torch.dtype:
    """The dtype that PyTorch gives a Python number on its own: a float has the default dtype."""
    if isinstance(x, (jax.Array, jax.core.Tracer)):
        kind = x.dtype.kind
    else:
        kind = {bool: "b", int: "i", float: "f", complex: "c"}[type(x)]
    default = default_dtype()
    if kind == "f":
        return default
    if kind == "c":
        return default.to_complex()
    return torch.bool if kind == "b" else torch.int64


def _combined(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher if lower is None else lower
    if higher.is_complex:
        return higher
    if higher.is_floating_point:
        return higher.to_complex() if lower.is_complex else higher
    if higher == torch.bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def result_type(*operands: Any) -> torch.dtype:
    """What `torch.result_type` gives for the tensors and numbers that these arrays stand for."""
    with_dims: torch.dtype | None = None
    zero_dim: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for x in operands:
        if is_number(x):
            dtype = number_dtype(x)
            numbers = dtype if numbers is None else torch.promote_types(numbers, dtype)
            continue
        dtype = dtypes.to_torch(x.dtype)
        if x.ndim:
            with_dims = dtype if with_dims is None else torch.promote_types(with_dims, dtype)
        else:
            zero_dim = dtype if zero_dim is None else torch.promote_types(zero_dim, dtype)
    result = _combined(with_dims, _combined(zero_dim, numbers))
    if result is None:
        raise TypeError("result_type needs at least one operand")
    return result


def computed_in(dtype: torch.dtype, kind: Promote) -> torch.dtype:
    """The dtype an operator of this kind computes in, given the common dtype of its inputs."""
    if kind is Promote.INT_TO_FLOAT and not (dtype.is_floating_point or dtype.is_complex):
        return default_dtype()
    if kind is Promote.BOOL_TO_INT and dtype == torch.bool:
        return torch.int64
    return dtype


def promoted(
    operands: Sequence[Any], kind: Promote = Promote.DEFAULT
) -> tuple[list[Array], np.dtype]:
    """The operands as strongly typed arrays of one dtype, and that dtype. Shapes stay as they are.

    >>> arrays, dtype = promoted((jnp.ones(2, "int32"), jnp.ones(2, "float32")), Promote.DEFAULT)
    >>> dtype.name, [array.dtype.name for array in arrays]
    ('float32', ['float32', 'float32'])
    """
    dtype = dtypes.to_jax(computed_in(result_type(*operands), kind))
    return [as_dtype(x, dtype) for x in operands], dtype


def as_dtype(x: Any, dtype: np.dtype) -> Array:
    """`x`, a number or an array, as a strongly typed array of `dtype`.

    A bool is selected as 1 or 0, not converted: XLA makes `convert(bool) * y` a choice between `y` and 0,
    so that 0 times infinity would be 0.
    """
    if dtype == _E4M3 and _SATURATES:
        x = _within_e4m3(x)
    if dtype == _E8M0:
        return _power_of_two(x)
    if isinstance(x, (jax.Array, jax.core.Tracer)):
        if x.dtype == dtype and not x.weak_type:
            return x
        if jnp.issubdtype(x.dtype, np.complexfloating) and not jnp.issubdtype(
            dtype, np.complexfloating
        ):
            x = x.real
        if x.dtype == np.bool_ and jnp.issubdtype(dtype, np.inexact):
            return jax.lax.select(x, jax.lax.full_like(x, 1, dtype), jax.lax.full_like(x, 0, dtype))
        return jax.lax.convert_element_type(x, dtype)
    if isinstance(x, int) and dtype.kind in "iu":
        return jnp.asarray(dtypes.wrapped(x, dtype))
    return jnp.asarray(x, dtype)


def _within_e4m3(x: Any) -> Any:
    """`x` without what is too large for float8_e4m3fn: the largest number stands for it, in PyTorch."""
    if not isinstance(x, (jax.Array, jax.core.Tracer)):
        return x if x != x else min(max(x, -_LARGEST_E4M3), _LARGEST_E4M3)
    if x.dtype == _E4M3 or x.dtype == np.bool_:
        return x
    real = x.real if jnp.issubdtype(x.dtype, np.complexfloating) else x
    if x.dtype.itemsize == 1 and x.dtype.kind == "V":  # other kinds of float8, which may lack 448
        real = jax.lax.convert_element_type(real, np.float32)
    least = max(-_LARGEST_E4M3, jnp.iinfo(x.dtype).min) if x.dtype.kind in "iu" else -_LARGEST_E4M3
    most = min(_LARGEST_E4M3, jnp.iinfo(x.dtype).max) if x.dtype.kind in "iu" else _LARGEST_E4M3
    return jnp.clip(real, jnp.asarray(least, real.dtype), jnp.asarray(most, real.dtype))


def _power_of_two(x: Any) -> Array:
    """`x` as float8_e8m0fnu: the nearest power of two, of two the even one, of the number without its sign.

    As PyTorch makes it; XLA gives nan for what is negative, and for 0, for which PyTorch gives the least.
    """
    if isinstance(x, (jax.Array, jax.core.Tracer)) and x.dtype == _E8M0:
        return x
    number = jax.lax.bitcast_convert_type(as_dtype(x, np.dtype(np.float32)), np.uint32)
    exponent, rest = (number >> 23) & 0xFF, number & 0x7FFFFF
    half = np.uint32(0x400000)
    is_more = (rest > half) | ((rest == half) & (exponent > 0))
    exponent = jnp.where(is_more & (exponent < 0xFF), exponent + 1, exponent)
    return jax.lax.bitcast_convert_type(exponent.astype(np.uint8), _E8M0)


def opmath(dtype: np.dtype) -> np.dtype:
    """The dtype in which PyTorch accumulates: float32 for float16 and bfloat16, else the same.

    >>> opmath(jnp.dtype("bfloat16")), opmath(jnp.dtype("float64"))
    (dtype('float32'), dtype('float64'))
    """
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype
