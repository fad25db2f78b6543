"""What lives outside of a captured step and is written by it: bound to the results of its last replay.

A model has hundreds of parameters and as much optimizer state. Giving each a new value after each replay
would cost the host more than the launch. So their values are `Bound`: each looks its array up in one list,
and that list is what a replay changes.

Values are immutable for everybody else. So before each replay it is made sure that only their buffers hold
them; what somebody else holds keeps the array that it had, and the buffer gets another value.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.graph.tape import Value
from torch_pjrt.run.quiet import quiet
from torch_pjrt.tensor.buffer import Buffer


class Stale(Exception):
    """The recording does not fit any more: its text says why."""


class Bound(Value):
    """The array at a place of a list that replays change. `keep` makes it an ordinary value again."""

    is_bound = True
    __slots__ = ("arrays", "place")

    def __init__(self, face: Face, arrays: list[Any], place: int) -> None:
        self.face = face
        self.number = 0
        self.tape = None
        self.origin = None
        self.arrays = arrays
        self.place = place

    @property
    def array(self) -> Any:  # type: ignore[override]
        """The array that is in the list now."""
        return self.arrays[self.place]

    @array.setter
    def array(self, array: Any) -> None:
        self.arrays[self.place] = array

    def keep(self) -> None:
        """From now on the array that is in the list now; the list lets go of it."""
        array, self.arrays[self.place] = self.arrays[self.place], None
        self.arrays, self.place = [array], 0


@dataclass(frozen=True, slots=True)
class Target:
    """A buffer outside that the step writes to.

    face     what the buffer has to look like.
    is_read  a launch reads what it held before; `is_taken`: and takes its memory.
    """

    buffer: weakref.ref[Buffer]
    face: Face
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
        self._values: list[weakref.ref[Bound]] = []
        there = [t for t in targets if t.is_read or t.buffer() is not None]
        self._taken = [i for i, t in enumerate(there) if t.is_taken]
        for target in there:
            buffer_at(target.buffer, target.face)
        with quiet():
            for target in there:
                self._bind(target)

    def _bind(self, target: Target) -> None:
        buffer = target.buffer()
        assert buffer is not None
        is_alone, array = array_of(buffer)
        array = array if is_alone or not target.is_taken else array.copy()
        self.targets.append(target)
        self.arrays.append(array)
        old: Any = buffer.value
        if isinstance(old, Bound):
            old.keep()
        buffer.value = value = Bound(old.face, self.arrays, len(self.arrays) - 1)
        self._values.append(weakref.ref(value, partial(_let_go, self.arrays, value.place)))

    def __del__(self) -> None:
        self.release()  # or the list would live as long as one of the values

    def stands(self) -> bool:
        """Whether every buffer is there and holds its value, and nobody else holds that, or what is taken."""
        values = [reference() for reference in self._values]
        return (
            all(map(_holds, self.targets, values))
            and are_held_once(values)
            and are_held_once([self.arrays[i] for i in self._taken])
        )

    def release(self) -> None:
        """Give the buffers ordinary values again, so that nobody but they holds their arrays."""
        with quiet():
            for target, reference in zip(self.targets, self._values, strict=True):
                buffer, value = target.buffer(), reference()
                if value is not None:
                    value.keep()
                    if buffer is not None and buffer.value is value:
                        buffer.value = Value.of_array(value.face, value.array)
            self.targets, self._values, self._taken = [], [], []
            self.arrays = []


def _holds(target: Target, value: Bound | None) -> bool:
    buffer = target.buffer()
    return buffer is not None and buffer.value is value and buffer.face is target.face


def _let_go(arrays: list[Any], place: int, _: weakref.ref[Bound]) -> None:
    """Called when a bound value is gone: nobody will ask for its array."""
    arrays[place] = None


def buffer_at(reference: weakref.ref[Buffer], face: Face) -> Buffer:
    """A buffer outside; raises `Stale` if it is gone, empty or looks different."""
    buffer = reference()
    if buffer is None:
        raise Stale("a tensor that the step used is gone")
    if buffer.face is not face:
        raise Stale(f"a tensor that the step used was {face}, is {buffer.face}")
    if buffer.value is None or buffer.value.array is None:
        raise Stale("a tensor that the step used was emptied")
    return buffer


def array_of(buffer: Buffer) -> tuple[bool, Any]:
    """What the buffer holds, and whether nobody but the buffer holds it."""
    value: Any = buffer.value
    array = value.array
    return sys.getrefcount(value) + sys.getrefcount(array) <= _ALONE, array


def are_held_once(items: Sequence[Any]) -> bool:
    """Whether each of them is held by one place besides this list."""
    return max(map(sys.getrefcount, items), default=0) <= _ONCE


def _alone() -> int:
    """The sum of the two reference counts in `array_of` where only the buffer holds the value."""
    global _ALONE
    held: Any = object()
    face = contiguous_face((2,), torch.int64)
    buffer = Buffer(Value.of_array(face, held), face)
    del held
    _ALONE = 0
    while not array_of(buffer)[0]:
        _ALONE += 1
    return _ALONE


def _once() -> int:
    """The reference count in `are_held_once` of what one other place holds."""
    global _ONCE
    place = [object()]
    _ONCE = 0
    while not are_held_once([place[0]]):
        _ONCE += 1
    return _ONCE


_ALONE = 0
_ALONE = _alone()
_ONCE = 0
_ONCE = _once()
