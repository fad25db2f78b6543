"""The tape: what was recorded since the last sync, in program order.

A value is numbered on the tape that it belongs to: a pending one (made by a recorded operator) by
its place in `Tape.values`, counting from 0; one that was there before (an input of the coming
program) by -1, -2, ... A recorded operator is a run of integers in `Tape.code`: the number of its
signature, the numbers of its inputs and, for a random operator, its draw.

Which pending values are live is a question of reference counts alone: a value that somebody besides
its tape holds (a buffer, and so a tensor) is live. So the tape must not be part of any reference
cycle, and nothing else may keep a `Value` for longer than a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

from torch_pjrt.errors import LostValue

if TYPE_CHECKING:
    import jax

    from torch_pjrt.graph.face import Face


class Value:
    """One immutable array: pending on a tape, or there on the device.

    tape    the tape that `number` refers to; another tape knows nothing of this value yet.
    number  see the module's docstring.
    array   the device array; None while pending.
    face    shape and dtype.
    origin  the (negative) number of the program input whose place in its buffer this value took by
            in-place writes, or None: that input's memory can be reused for this value.
    """

    __slots__ = ("__weakref__", "array", "face", "number", "origin", "tape")

    def __init__(self, face: Face, number: int, tape: Tape | None) -> None:
        self.face = face
        self.number = number
        self.tape = tape
        self.origin: int | None = None
        self.array: jax.Array | None = None

    @classmethod
    def of_array(cls, face: Face, array: jax.Array) -> Self:
        """A value that is on the device already."""
        value = cls(face, 0, None)
        value.array = array
        return value

    def __repr__(self) -> str:
        state = "pending" if self.array is None else "on the device"
        return f"Value({self.face}, {state}, number {self.number})"


class Uploaded(Value):
    """Integers that came from the host: `range` is their least and their largest."""

    __slots__ = ("range",)
    range: tuple[int, int]


class Tape:
    """A straight-line program being recorded. Kernels append to its lists directly.

    code    integers, see the module's docstring.
    values  the pending values, by number.
    inputs  the values that were there before, in the order of their first use.
    ints, floats    Python numbers of the calls, in order: candidates for program inputs.
    draws   for each (re)seeding that this tape saw: the generator's seed and offset there.
    n_draws how many random operators were recorded since the last (re)seeding.
    nested  a scratch tape on which a decomposition is recorded; it never syncs.
    failure what its program failed with, in a line; the values it did not make are lost.
    """

    __slots__ = (
        "code",
        "draws",
        "failure",
        "floats",
        "inputs",
        "ints",
        "n_draws",
        "nested",
        "values",
    )
    # Makes the code of a new tape. `observe/lines.py` puts a list here that notes more than the integers.
    new_code: ClassVar[Callable[[], list[int]]] = list

    def __init__(self, *, nested: bool = False) -> None:
        self.code = Tape.new_code()
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.draws: list[tuple[int, int]] = []
        self.n_draws = 0
        self.nested = nested
        self.failure: str | None = None

    def take(self, value: Value) -> int:
        """Number a value that another tape, or none, knows: it becomes an input of this one."""
        if value.array is None and not self.nested:
            raise lost(value)
        number = -len(self.inputs) - 1
        self.inputs.append(value)
        value.tape = self
        value.number = value.origin = number
        return number


def lost(value: Value) -> Exception:
    """The error for a value that is still pending though its tape has ended."""
    failure = value.tape.failure if value.tape is not None else None
    if failure is None:
        return AssertionError(
            f"{value} is pending on a tape that has been run: a bug of torch-pjrt"
        )
    return LostValue(
        "The value of this tensor was never computed: its program failed.",
        saw=failure,
        hint="what does not depend on the operator that failed is there; make the rest anew",
    )


class State:
    """What kernels reach through one global look-up: the tape being recorded."""

    __slots__ = ("tape",)

    def __init__(self) -> None:
        self.tape = Tape()


state = State()


def number_on(tape: Tape, value: Value) -> int:
    """The value's number on this tape; registers it as an input if need be."""
    return value.number if value.tape is tape else tape.take(value)


def push(tape: Tape, face: Face, *code: int) -> Value:
    """Record a node of one result, `code`; the value that it makes.

    An interrupt (Ctrl-C) comes before the node is on the tape or after: between, nothing is called.
    """
    values = tape.values
    value = Value(face, len(values), tape)
    tape.code += code
    values.append(value)
    return value
