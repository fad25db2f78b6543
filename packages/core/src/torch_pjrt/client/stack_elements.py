"""Stack elements: arrays that are no arrays of their own but elements of a stack on the device.

What a program gives as a stack stays one. Each value in it holds a `StackElement`, which says where it lies;
the next program that takes the same stack gets it as it is. Who needs one element alone gets a copy of it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.client.client import telling_of_exhaustion
from torch_pjrt.client.shardings import element_of, stack_of
from torch_pjrt.lowering.host_memory import on_chip, on_chips
from torch_pjrt.observe.counters import counters
from torch_pjrt.references import counts

if TYPE_CHECKING:
    from torch_pjrt.graph.boundary import Boundary
    from torch_pjrt.graph.tape import Value


class Stack:
    """Arrays of one shape and dtype as one, along a new first dim.

    array  all of them, n x the shape of each. Its elements hold the stack, and nobody else does: how many
           references there are says how many elements are alive.
    """

    __slots__ = ("array",)

    def __init__(self, array: jax.Array) -> None:
        self.array = array

    def elements(self) -> list[StackElement]:
        """All its elements."""
        return list(map(StackElement, repeat(self), range(self.array.shape[0])))


class StackElement:
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
        return element_of(self.stack.array.sharding)

    def alone(self) -> jax.Array:
        """A copy of this element, as an array of its own."""
        counters.elements_taken += 1
        with dtypes.x64(), telling_of_exhaustion("copying a part of a stack"):
            return _element(self.stack.array, self.index)

    def is_deleted(self) -> bool:
        return self.stack.array.is_deleted()

    def is_ready(self) -> bool:
        return self.stack.array.is_ready()  # pyright: ignore[reportAttributeAccessIssue]

    def block_until_ready(self) -> StackElement:
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
    return array.alone() if array.__class__ is StackElement else array


def whole(array: Any) -> jax.Array:
    """The array itself; of an element of a stack the stack."""
    return array.stack.array if array.__class__ is StackElement else array


def copy_of(array: Any) -> jax.Array:
    """A copy that is an array of its own."""
    if array.__class__ is StackElement:
        return array.alone()
    with telling_of_exhaustion("copying an array"):
        return array.copy()


def gathered(
    boundary: Boundary,
    arrays: list[Any],
    kept: Collection[int] = (),
    values: Sequence[Value | None] | None = None,
) -> list[jax.Array]:
    """What a program takes, in its order, from its inputs as they were recorded.

    `kept` are the positions of inputs that somebody else holds: their memory is not taken. `values` are those
    that hold the inputs (None: none that lasts): where a stack has to be made, they become its elements, so
    that it need not be made again and nothing is held twice. Elements of another stack that has others stay
    there.
    """
    if boundary.is_plain and not kept:
        return [a.alone() if a.__class__ is StackElement else a for a in arrays]
    found: list[jax.Array] = []
    for number, position in enumerate(boundary.inputs):
        if isinstance(position, int):
            array = alone(arrays[position])
            found.append(copy_of(array) if position in kept else array)
            continue
        elements = [arrays[i] for i in position]
        if _are_all(elements):
            is_held = number in boundary.taken and (
                _is_held(elements[0], len(elements)) or any(i in kept for i in position)
            )
            stack = whole(elements[0])
            found.append(copy_of(stack) if is_held else stack)
            continue
        found.append(_stack_of(elements))
        if values is None or any(i in kept for i in position) or _are_wanted_elsewhere(elements):
            continue
        del elements
        for i, element in zip(position, Stack(found[-1]).elements(), strict=True):
            arrays[i] = element
            if (value := values[i]) is not None:
                value.array = element  # type: ignore[assignment]
    return found


def spread(boundary: Boundary, results: Sequence[jax.Array]) -> Sequence[Any]:
    """The outputs as they were recorded, from what a program has given."""
    if boundary.is_plain:
        return results
    found: list[Any] = []
    for position, result in zip(boundary.outputs, results, strict=True):
        if position.__class__ is int:
            found.append(result)
        else:
            found += Stack(result).elements()
    return boundary.in_order(found)


def _stack_of(elements: Sequence[Any]) -> jax.Array:
    """A stack of these. It is there when this returns: its elements may be all that holds what is in it.

    And who is launched on it may take the memory of others, which would be lost if the stack had failed.
    """
    counters.stacks_made += 1
    with dtypes.x64(), telling_of_exhaustion("putting arrays together as a stack"):
        return _stacked([alone(element) for element in elements]).block_until_ready()


def _are_all(elements: Sequence[Any]) -> bool:
    """Whether these are all the elements of one stack, in order."""
    first = elements[0]
    if first.__class__ is not StackElement:
        return False
    stack = first.stack
    for index, element in enumerate(elements):
        if (
            element.__class__ is not StackElement
            or element.index != index
            or element.stack is not stack
        ):
            return False
    return len(elements) == stack.array.shape[0]


def _are_wanted_elsewhere(arrays: Sequence[Any]) -> bool:
    """Whether all are elements already, and of some stack others are alive."""
    if not all(array.__class__ is StackElement for array in arrays):
        return False
    numbers = Counter(id(element.stack) for element in arrays)
    return any(_is_held(element, numbers[id(element.stack)]) for element in arrays)


def _is_held(element: StackElement, n: int) -> bool:
    """Whether more elements of its stack are alive than `n`, which the caller has; of the stack it has none.

    The stack itself is no argument: how many references the arguments of a Python function have depends on
    whether Dynamo looks at each frame, as it does in what it has compiled and after a failure.
    """
    [references] = counts([element.stack])
    return references > n


def _stacked(arrays: Sequence[jax.Array]) -> jax.Array:
    return _made(_stack, stack_of(arrays[0].sharding))(arrays)


def _element(stack: jax.Array, index: int) -> jax.Array:
    return _made(_one_of, element_of(stack.sharding))(stack, index)


def _stack(arrays: Sequence[jax.Array]) -> jax.Array:
    return jnp.stack(on_chips(arrays))


def _one_of(stack: jax.Array, index: int) -> jax.Array:
    return on_chip(lax.dynamic_index_in_dim(stack, index, keepdims=False))


@functools.lru_cache(maxsize=256)
def _made(function: Callable[..., jax.Array], sharding: Any) -> Callable[..., jax.Array]:
    """The function compiled with a result that lies like this."""
    return jax.jit(function, out_shardings=sharding)
