"""Rows: arrays that are no arrays of their own but elements of a stack on the device.

What a program gives as a stack stays one. Each value in it holds a `Row`, which says where it lies; the next
program that takes the same stack gets it as it is. Who needs one row alone gets a copy of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.observe.counters import counters

if TYPE_CHECKING:
    from torch_pjrt.compile.boundary import Boundary
    from torch_pjrt.graph.tape import Value


class Stack:
    """Arrays of one shape and dtype as one, along a new first dim.

    array  all of them, n x the shape of each. Its rows hold the stack, and nobody else does: how many
           references there are says how many rows are alive.
    """

    __slots__ = ("array",)

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    def rows(self) -> list[Row]:
        """All its elements."""
        return [Row(self, index) for index in range(self.array.shape[0])]


class Row:
    """One element of a stack, in the place of an array of its own."""

    __slots__ = ("index", "stack")

    def __init__(self, stack: Stack, index: int) -> None:
        self.stack = stack
        self.index = index

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stack.array.shape[1:]

    @property
    def dtype(self) -> Any:
        return self.stack.array.dtype

    @property
    def sharding(self) -> Any:
        return self.stack.array.sharding

    def alone(self) -> jax.Array:
        """A copy of this element, as an array of its own."""
        counters.rows_taken += 1
        with dtypes.x64():
            return _element(self.stack.array, self.index)

    def copy(self) -> jax.Array:
        """As `alone`: what arrays have."""
        return self.alone()

    def is_deleted(self) -> bool:
        return self.stack.array.is_deleted()

    def is_ready(self) -> bool:
        return self.stack.array.is_ready()

    def block_until_ready(self) -> Row:
        self.stack.array.block_until_ready()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.stack.array
        # The host's memory is the device's: nothing is copied until the element is.
        is_host = all(chip.platform == "cpu" for chip in array.sharding.device_set)
        host = np.asarray(array)[self.index, ...] if is_host else np.asarray(self.alone())
        return host if dtype is None else host.astype(dtype)


def alone(array: Any) -> jax.Array:
    """The array itself; an element of a stack as an array of its own."""
    return array.alone() if array.__class__ is Row else array


def whole(array: Any) -> jax.Array:
    """The array itself; of an element of a stack the stack."""
    return array.stack.array if array.__class__ is Row else array


def gathered(
    boundary: Boundary,
    arrays: list[Any],
    kept: Collection[int] = (),
    values: Sequence[Value | None] | None = None,
) -> list[jax.Array]:
    """What a program takes, in its order, from its inputs as they were recorded.

    `kept` are the places of inputs that somebody else holds: their memory is not taken. `values` are those
    that hold the inputs (None: none that lasts): where a stack has to be made, they become its rows, so that
    it need not be made again and nothing is held twice. Rows of another stack that has others stay there.
    """
    if boundary.is_plain and not kept:
        return [a.alone() if a.__class__ is Row else a for a in arrays]
    found: list[jax.Array] = []
    for number, place in enumerate(boundary.inputs):
        if isinstance(place, int):
            array = alone(arrays[place])
            found.append(array.copy() if place in kept else array)
            continue
        rows = [arrays[i] for i in place]
        if _are_all(rows):
            is_held = number in boundary.taken and (
                _is_held(rows[0], len(rows)) or any(i in kept for i in place)
            )
            found.append(whole(rows[0]).copy() if is_held else whole(rows[0]))
            continue
        counters.stacks_made += 1
        with dtypes.x64():
            found.append(_stacked([alone(row) for row in rows]))
        if values is None or any(i in kept for i in place) or _are_wanted_elsewhere(rows):
            continue
        del rows
        for i, row in zip(place, Stack(found[-1]).rows(), strict=True):
            arrays[i] = row
            if (value := values[i]) is not None:
                value.array = row  # type: ignore[assignment]
    return found


def spread(boundary: Boundary, results: Sequence[jax.Array]) -> Sequence[Any]:
    """The outputs as they were recorded, from what a program has given."""
    if boundary.is_plain:
        return results
    found: dict[int, Any] = {}
    for place, result in zip(boundary.outputs, results, strict=True):
        if isinstance(place, int):
            found[place] = result
        else:
            found.update(zip(place, Stack(result).rows(), strict=True))
    return [found[i] for i in range(len(found))]


def _are_all(rows: Sequence[Any]) -> bool:
    """Whether these are all the rows of one stack, in order."""
    first = rows[0]
    if first.__class__ is not Row:
        return False
    stack = first.stack
    for index, row in enumerate(rows):
        if row.__class__ is not Row or row.index != index or row.stack is not stack:
            return False
    return len(rows) == stack.array.shape[0]


def _are_wanted_elsewhere(arrays: Sequence[Any]) -> bool:
    """Whether all are rows already, and of some stack others are alive."""
    if not all(array.__class__ is Row for array in arrays):
        return False
    numbers = Counter(id(row.stack) for row in arrays)
    return any(_is_held(row, numbers[id(row.stack)]) for row in arrays)


def _is_held(row: Row, n: int) -> bool:
    """Whether more rows of its stack are alive than `n`, which the caller has; of the stack it has none.

    The stack itself is no argument: how many references the arguments of a Python function have depends on
    whether Dynamo looks at each frame, as it does in what it has compiled and after a failure.
    """
    [references] = map(sys.getrefcount, [row.stack])
    return references > n + _OURS


@jax.jit
def _stacked(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(arrays)


@jax.jit
def _element(stack: jax.Array, index: int) -> jax.Array:
    return lax.dynamic_index_in_dim(stack, index, keepdims=False)


# The references that `_is_held` sees beside those of the rows.
[_OURS] = map(sys.getrefcount, [object()])
