"""Rules under the usual 32 bits of JAX: some functions, its own kernels among them, fail with more."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax

from torch_pjrt.errors import LoweringError

P = ParamSpec("P")
R = TypeVar("R")


def without_x64(function: Callable[P, R]) -> Callable[P, R]:
    """A rule, or a part of one, that JAX traces with its x64 switch off, as in a program of JAX's own.

    Rules are traced with the switch on, so that int64 and float64 are real. With it off, Python numbers and
    `jnp.arange(n)` have 32 bits, as Pallas kernels and JAX's own expect. Arrays of 64 bits cannot go in:
    raises `LoweringError`, and the caller says how they are to be narrowed.

        >>> @without_x64
        ... def kernel(x, length):
        ...     return x * (jnp.arange(len(x)) < length)
        >>> def rule(x, length):  # an int64, as PyTorch has it
        ...     return kernel(x, length.astype("int32"))
        >>> rule(jnp.ones(3), jnp.array(2))
        Array([1., 1., 0.], dtype=float32)
    """

    @wraps(function)
    def narrow(*args: P.args, **kwargs: P.kwargs) -> R:
        for x in jax.tree.leaves((args, kwargs)):
            dtype = getattr(x, "dtype", None)
            if dtype is not None and str(dtype) in _WIDE and not getattr(x, "weak_type", False):
                raise LoweringError(
                    f"`{function.__name__}` runs without 64-bit types and is given one.",
                    saw=f"{dtype}{list(x.shape)}",
                    hint="narrow the array before the call: x.astype('int32')",
                )
        with jax.enable_x64(False):
            return function(*args, **kwargs)

    narrow.computes_as_wrapped = True  # type: ignore[attr-defined]
    return narrow


_WIDE: Any = frozenset(("int64", "uint64", "float64", "complex128"))
