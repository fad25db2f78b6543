"""The table of rules that exported programs alone have.

A rule there takes what the result looks like first (`ResultSpec`: PyTorch's sizes as JAX dims), then the
operator's arguments. So a view that keeps the order of its elements is one reshape to the sizes that
PyTorch knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jax.extend.core import InconclusiveDimensionOperation

Array = jax.Array
Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ResultSpec:
    """What a result looks like: its sizes as ints and JAX dims, its dtype as JAX has it."""

    shape: tuple[Any, ...]
    dtype: Any


RULES: dict[Any, Rule] = {}

# These take a PRNG key behind what the result looks like.
RANDOM: dict[Any, Rule] = {}


def rule(*ops: Any) -> Callable[[Rule], Rule]:
    """Enters a rule for operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def within(position: Any, size: Any) -> Any:
    """A position as PyTorch reads it: from the end if negative, and never outside."""
    if isinstance(position, int) and isinstance(size, int):
        return max(0, min(position + size if position < 0 else position, size))
    if not isinstance(position, jax.Array) and _is_negative(position):
        return core.max_dim(size + position, 0)
    return position


def _is_negative(position: Any) -> bool:
    """Whether a number or a dim is below 0, as far as what is known of dims says so."""
    try:
        return bool(position < 0)
    except InconclusiveDimensionOperation:
        return False


def sliced(x: Array, first: Any, length: Any, dim: int, step: int = 1) -> Array:
    """So many elements along a dim, from the first one on.

    JAX's slices must be known to lie within a tensor, whatever its sizes are. Where that is not known, though
    PyTorch has checked it, elements are taken one by one.
    """
    try:
        return lax.slice_in_dim(x, first, first + (length - 1) * step + 1, step, dim)
    except InconclusiveDimensionOperation:
        positions = number_of(first) + lax.iota(np.int64, length) * step
        return jnp.take(x, positions, axis=dim, mode="clip")


def is_(size: Any, value: int) -> bool:
    """Whether a size is known and has this value."""
    return isinstance(size, int) and size == value


def number_of(x: Any) -> Any:
    """A number that JAX computes with; of a dim its value, weakly typed as Python's numbers are."""
    return x if isinstance(x, (bool, int, float, complex, jax.Array)) else jnp.asarray(x)
