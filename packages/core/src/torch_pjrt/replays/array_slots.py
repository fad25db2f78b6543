"""What lives outside of a captured step and is written by it: bound to the results of its last replay.

A model has hundreds of parameters and as much optimizer state. Giving each a new value after each replay
would cost the host more than the launch. So each of their values is an `ArraySlot`: it looks its array up
in one list, and that list is what a replay changes.

Values are immutable for everybody else. So before each replay it is made sure that only their buffers hold
them; what somebody else holds keeps the array that it had, and the buffer gets another value.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_
from typing import Any

from torch_pjrt.client.stack_elements import copy_of
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.references import OF_A_LOCAL, are_held_once, getrefcount
from torch_pjrt.run import sync
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import Buffer
from torch_pjrt.tensor.storage.view import content

# For each thread, how often it has begun or ended to give buffers other values that hold what they held: odd
# while it does. What another thread observes meanwhile tells values apart by identity.
rebindings: Counter[int] = session.own("values that hold what others held", Counter())


@contextmanager
def rebinding() -> Iterator[None]:
    """While this thread gives buffers other values that hold what they held."""
    thread = threading.get_ident()
    rebindings[thread] += 1
    try:
        yield
    finally:
        rebindings[thread] += 1


_value_of, _spec_of = attrgetter("value"), attrgetter("spec")


class Stale(Exception):
    """The recording does not fit any more: its text says why."""


class ArraySlot(Value):
    """The array at a position of a list that replays change. `keep` makes it an ordinary value again."""

    is_slot = True
    __slots__ = ("arrays", "position")

    def __init__(self, spec: TensorSpec, arrays: list[Any], position: int) -> None:
        self.spec = spec
        self.number = 0
        self.tape = None
        self.origin = None
        self.arrays = arrays
        self.position = position

    @property
    def array(self) -> Any:  # type: ignore[override]
        """The array that is in the list now."""
        return self.arrays[self.position]

    @array.setter
    def array(self, array: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.arrays[self.position] = array

    def keep(self) -> None:
        """From now on the array that is in the list now; the list lets go of it."""
        array, self.arrays[self.position] = self.arrays[self.position], None
        self.arrays, self.position = [array], 0


@dataclass(frozen=True, slots=True)
class Target:
    """A buffer outside that the step writes to.

    spec     what the buffer has to look like.
    is_read  a launch reads what it held before; `is_taken`: and takes its memory.
    """

    buffer: weakref.ref[Buffer]
    spec: TensorSpec
    is_read: bool
    is_taken: bool


class Binding:
    """The targets of a recording, bound.

    targets  those whose buffers are there; one that is only written to may be gone.
    arrays   what they hold, in this order. Replays put the next results here.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        """Bind what is there.

        Raises `Stale` where a buffer is gone or looks different; nothing is bound then.
        """
        self.targets: list[Target] = []
        self.arrays: list[Any] = []
        self._taken: list[int] = []
        self._values: list[weakref.ref[ArraySlot]] = []
        there = [t for t in targets if t.is_read or t.buffer() is not None]
        self._taken = [i for i, t in enumerate(there) if t.is_taken]
        for target in there:
            buffer_at(target.buffer, target.spec)
        self._buffers = [t.buffer for t in there]
        self._specs = [t.spec for t in there]
        with quiet(), rebinding():
            for target in there:
                self._bind(target)

    def _bind(self, target: Target) -> None:
        buffer = target.buffer()
        assert buffer is not None
        is_alone, array = array_of(buffer)
        array = array if is_alone or not target.is_taken else copy_of(array)
        self.targets.append(target)
        self.arrays.append(array)
        old: Any = buffer.value
        if isinstance(old, ArraySlot):
            old.keep()
        buffer.value = value = ArraySlot(old.spec, self.arrays, len(self.arrays) - 1)
        self._values.append(weakref.ref(value, partial(_let_go, self.arrays, value.position)))

    def __del__(self) -> None:
        self.release()  # or the list would live as long as one of the values

    def stands(self) -> bool:
        """Whether every buffer is there and holds its value, and nobody else holds that, or what is taken.

        The loops run in C, as a model may have a thousand targets.
        """
        values = [reference() for reference in self._values]
        buffers = [reference() for reference in self._buffers]
        try:
            return (
                all(map(is_, map(_value_of, buffers), values))
                and all(map(is_, map(_spec_of, buffers), self._specs))
                and are_held_once(values)  # a value that is gone is None, which many hold
                and are_held_once([self.arrays[i] for i in self._taken])
            )
        except AttributeError:  # a buffer is gone
            return False

    def release(self) -> None:
        """Give the buffers ordinary values again, so that nobody but they holds their arrays."""
        with quiet(), rebinding():
            # `_bind` may have been cut short, and the last target have no value yet.
            for target, reference in zip(self.targets, self._values, strict=False):
                buffer, value = target.buffer(), reference()
                if value is not None:
                    value.keep()
                    if buffer is not None and buffer.value is value:
                        buffer.value = Value.of_array(value.spec, value.array)
            self.targets, self._values, self._taken = [], [], []
            self.arrays = []


def _let_go(arrays: list[Any], position: int, _: weakref.ref[ArraySlot]) -> None:
    """Called when a slot is gone: nobody will ask for its array."""
    arrays[position] = None


def begin(arguments: Iterable[Buffer]) -> None:
    """Before a call: what is pending runs, and arguments that nobody has written to hold their zeros.

    Recorded when they are read, these would be the step's own, and not what it is given.
    """
    for buffer in arguments:
        content(buffer)
    sync.sync("a captured step begins")


def buffer_at(reference: weakref.ref[Buffer], spec: TensorSpec) -> Buffer:
    """A buffer outside; raises `Stale` if it is gone, empty or looks different."""
    buffer = reference()
    if buffer is None:
        raise Stale("a tensor that the step used is gone")
    if buffer.spec is not spec:
        raise Stale(f"a tensor that the step used was {spec}, is {buffer.spec}")
    if buffer.value is None or buffer.value.array is None:
        raise Stale("a tensor that the step used was emptied")
    return buffer


def array_of(buffer: Buffer) -> tuple[bool, Any]:
    """What the buffer holds, and whether nobody but the buffer holds it."""
    value: Any = buffer.value
    array = value.array
    return getrefcount(value) + getrefcount(array) <= 2 * OF_A_LOCAL, array
