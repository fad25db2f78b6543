"""The tape: what was recorded since the last sync, in program order.

A value is numbered on the tape that it belongs to: a pending one (made by a recorded operator) by
its position in `Tape.values`, counting from 0; one that was there before (an input of the coming
program) by -1, -2, ... A recorded operator is a run in `Tape.code`: its signature, the numbers of its
inputs and, for a random operator, its draw. Signatures are interned, so equal code is an equal program;
the code holds them, so none of them goes while it is there (`caches.Interned`).

Which pending values are live is a question of reference counts alone: a value that somebody besides
its tape holds is live. Those who hold one are buffers, and so tensors, and the deferred checks, whose
value must be computed though no tensor has it (`run/deferred_checks.py`). So the tape must not be part
of any reference cycle, and nothing else may keep a `Value` for longer than a call.

Each thread records on a tape of its own, without a lock. A thread that needs a value which is pending on
another's tape closes that tape and runs it; its owner finds it closed at the last moment before it appends
a node, and records the node anew, on a fresh tape. Between that look and the end of the append no
function is called, and so no other thread runs: CPython changes threads at calls and loops only.

The same holds for what runs on this thread in between: handlers of signals run at calls and loops as well,
finalizers where a collection does, before Python 3.12 at the making of any tuple. They may record, or read.
So who appends has looked at `Tape.size` before it made the node, looks again, and records the node anew if
another one has come; from there on it calls nothing and makes no object with references.

That is the protocol of an append:

1. note `tape.size`; take or make all that the node needs (numbers of inputs, draws, values);
2. look at `tape.closed` and at `tape.size`, and begin again if either has changed;
3. change the tape by stores, `+=` on its lists, and `append` of a list alone.

It is written out wherever a call would cost too much: `record.record` for any operator, the kernels of
`kernel_source.py`, `composed.record` for several nodes at once, `append.append` for compiled graphs, `push`
for views; and, for an input's number, `Tape.take` and `append._numbered`.
`tests/recording/test_append_protocol.py` reads the bytecode of each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch_pjrt.errors import LostValue
from torch_pjrt.interrupts import signals
from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.references import are_held_once

if TYPE_CHECKING:
    import jax

    from torch_pjrt.graph.signature import Signature
    from torch_pjrt.graph.tensor_spec import TensorSpec


class Value:
    """One immutable array: pending on a tape, or there on the device.

    tape    the tape that `number` refers to; another tape knows nothing of this value yet.
    number  see the module's docstring.
    array   the device array; None while pending.
    spec    shape and dtype.
    origin  of a pending value: the (negative) number of the program input whose place in its buffer it took
            by in-place writes, or None: that input's memory can be reused for this value.

    `is_slot`: `array` is another one after the next replay of a captured step, so nothing that was made of
    it may be remembered.

        >>> pending = value_of(torch.ones(2, device="pjrt") + 1)
        >>> torch_pjrt.sync()
        >>> pending.array
        Array([2., 2.], dtype=float32)
    """

    is_slot: ClassVar[bool] = False
    __slots__ = ("__weakref__", "array", "number", "origin", "spec", "tape")

    def __init__(self, spec: TensorSpec, number: int, tape: Tape | None) -> None:
        self.spec = spec
        self.number = number
        self.tape = tape
        self.origin: int | None = None
        self.array: jax.Array | None = None

    @classmethod
    def of_array(cls, spec: TensorSpec, array: jax.Array) -> Self:
        """A value that is on the device already."""
        value = cls(spec, 0, None)
        value.array = array
        if on_array is not None:
            on_array(value)
        return value

    def __repr__(self) -> str:
        state = "pending" if self.array is None else "on the device"
        return f"Value({self.spec}, {state}, number {self.number})"


class Uploaded(Value):
    """Integers that came from the host: `range` is their least and their largest.

    >>> value_of(torch.tensor([3, 1, 2]).to("pjrt")).range
    (1, 3)
    """

    __slots__ = ("range",)
    range: tuple[int, int]


_serials = count()


class Tape:
    """A straight-line program being recorded. Kernels append to its lists directly.

    code    signatures and integers, see the module's docstring.
    values  the pending values, by number; `size` is how many.
    inputs  the values that were there before, in the order of their first use; the next gets `next_input`.
    ints, floats    Python numbers of the calls, in order: candidates for program inputs.
    draws   for each (re)seeding that this tape saw: the generator's seed and offset there.
    n_draws how many random operators were recorded since the last (re)seeding.
    steps   how many `floats` there were where an optimizer's step began, and, as `~n`, where one ended.
    makes_state  within the first step of an optimizer that makes its state there, see
            `tensor/kernels/first_fills.py`.
    n_further    how many values are not the first of their node: what `len(values)` exceeds the nodes by.
    nested  a scratch tape on which a decomposition is recorded; it never syncs.
    defers_checks  on a nested tape: indices out of range are checked all the same, by who records on it.
    closed  it is being run, or was: nothing is appended any more.
    kept    what must live until the program is made: functions that recorded operators stand for.
    donated inputs (negative numbers) that were donated, and of each the value that may take its memory.
    shared  of each buffer that was given a value which another holds, too: a weak reference to it, its spec,
            and the input (a negative number) that it held before, or None.
    joint   where operators are on it that other processes take part in: these processes (`compile/joint.py`).
    unnumbered   the first node has taken its inputs at once: they do not know of their numbers, -1, -2, ...,
            before the next node asks for one. Most programs of compiled graphs have no next.
    failure what its program failed with, in a line; the values it did not make are lost.
    program the one that was launched for it (`compile/programs.py`); `box` gets, when it is launched, what
            that gave, as one item.
    ended   its live values have what they will ever have.
    serial  a later tape has a larger one.
    thread  who records on it.

        >>> with onto(Tape(nested=True)) as tape:
        ...     y = torch.ones(2, device="pjrt").sin()
        >>> len(tape.values)
        2
    """

    __slots__ = (
        "__weakref__",
        "_numbers",
        "box",
        "closed",
        "code",
        "defers_checks",
        "donated",
        "draws",
        "ended",
        "failure",
        "floats",
        "inputs",
        "ints",
        "joint",
        "kept",
        "makes_state",
        "n_draws",
        "n_further",
        "nested",
        "next_input",
        "program",
        "serial",
        "shared",
        "size",
        "steps",
        "thread",
        "unnumbered",
        "values",
    )
    # Makes the code of a new tape. `observe/lines.py` puts a list here that notes lines too.
    new_code: ClassVar[type[list[Any]]] = list
    # A nested tape that gives values which it takes from other tapes back to them.
    borrows: ClassVar[bool] = False

    def __init__(self, *, nested: bool = False, defers_checks: bool = False) -> None:
        self.code = Tape.new_code()
        self.values: list[Value] = []
        self.size = 0
        self.inputs: list[Value] = []
        self.next_input = -1
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.draws: list[tuple[int, int]] = []
        self.n_draws = 0
        self.steps: list[int] = []
        self.makes_state = False
        self.n_further = 0
        self.nested = nested
        self.defers_checks = defers_checks
        self.closed = False
        self.unnumbered = False
        # The numbers of the inputs by their ids: another thread's tape may have numbered them since.
        self._numbers: dict[int, int] = {}
        self.kept: list[Any] = []
        self.failure: str | None = None
        self.donated: dict[int, int] = {}
        self.shared: list[tuple[Any, TensorSpec, int | None]] = []
        self.joint: Any = None
        self.program: Any = None
        self.box: list[Any] = []
        self.ended = False
        self.serial = next(_serials)
        self.thread = threading.get_ident()

    def begin_step(self) -> None:
        """What is recorded from here on belongs to an optimizer's step."""
        self.steps.append(len(self.floats))

    def end_step(self) -> None:
        """It does not from here on."""
        self.steps.append(~len(self.floats))
        self.makes_state = False

    def floats_of_steps(self) -> set[int]:
        """Which of `floats` were recorded within an optimizer's step."""
        found: set[int] = set()
        start: int | None = None
        for n in (*self.steps, ~len(self.floats)):
            if n >= 0:
                start = n if start is None else start
            elif start is not None:
                found.update(range(start, ~n))
                start = None
        return found

    def successor(self) -> Tape:
        """A fresh tape for what comes next: within an optimizer's step, if this one ends there."""
        tape = Tape()
        if self.steps and self.steps[-1] >= 0:
            tape.begin_step()
            tape.makes_state = self.makes_state
        return tape

    def take(self, value: Value) -> int:
        """Number a value that another tape, or none, knows: it becomes an input of this one.

        One that is pending on another thread's tape is computed first. The number means nothing where the
        tape is closed by then.
        """
        if value.array is None and (not self.nested or self._is_strange(value)):
            compute(value)  # which raises on a nested tape: nothing is run for it
        if self.unnumbered:
            self.number_first()
        key, one, numbers = id(value), (value,), self._numbers
        # From here on nothing is called or made, see the module's docstring.
        if self.closed:
            return 0
        if key in numbers:
            number = numbers[key]
        else:
            number = self.next_input
            self.next_input = number - 1
            self.inputs += one
            numbers[key] = number
        value.tape = self
        value.number = number
        return number

    def _is_strange(self, value: Value) -> bool:
        """Whether a pending value belongs to another tape, which would not know it any more."""
        return not self.borrows and value.tape is not None and value.tape is not self

    def number_first(self) -> None:
        """Have the inputs of the first node know of their numbers."""
        self._numbers.update(zip(map(id, self.inputs), count(-1, -1), strict=False))
        for value in self.inputs:
            value.tape = self
            value.number = self._numbers[id(value)]
        self.unnumbered = False

    def drop_inputs(self, first: int) -> None:
        """Forget the inputs from the one at `first` on: no node reads them."""
        for value in self.inputs[first:]:
            value.tape = None
            del self._numbers[id(value)]
        del self.inputs[first:]
        self.next_input = -first - 1

    def lengths(self) -> tuple[int, ...]:
        """How much is recorded, for `take_back`."""
        return (
            *(len(self.code), len(self.values), len(self.ints)),
            *(len(self.floats), len(self.draws), self.n_draws),
        )

    def take_back(self, before: tuple[int, ...]) -> None:
        """Forget the reads that were recorded since `before`, if that is all and nobody holds any of them."""
        if self.lengths()[3:] != before[3:]:
            return
        size = self.size
        of_code, of_values, of_ints = (slice(n, None) for n in before[:3])
        alone = are_held_once(self.values[of_values])
        # These come last: between them and the deletions neither another thread nor a finalizer has its turn.
        if alone and self.size == size and not self.closed:
            self.size = before[1]
            del self.code[of_code]
            del self.ints[of_ints]
            del self.values[of_values]


class BorrowingTape(Tape):
    """A nested tape that may use what is pending on the tape outside, which gets it back at the end.

    >>> x = torch.ones(2, device="pjrt") + 1  # pending on this thread's tape
    >>> with onto(tape := BorrowingTape()):
    ...     try:
    ...         y = value_of(x.sin())
    ...     finally:
    ...         tape.give_back()
    >>> len(graph_of(tape, [y.number]).nodes)
    1
    """

    __slots__ = ("taken",)
    borrows = True

    def __init__(self) -> None:
        super().__init__(nested=True)
        self.taken: list[tuple[Value, Tape | None, int]] = []

    def take(self, value: Value) -> int:
        """As a tape does."""
        self.taken.append((value, value.tape, value.number))
        return super().take(value)

    def give_back(self) -> None:
        """All values that it took are on the tape outside again."""
        for value, tape, number in reversed(self.taken):
            value.tape, value.number = tape, number


def _nobody_runs(x: Value | Tape) -> None:
    raise AssertionError(f"nothing that runs tapes is imported: {x}")


# Told of each value that is made of an array; `observe/value_lines.py` puts a function here.
on_array: Callable[[Value], None] | None = None

# What runs tapes puts its functions here when it is imported (`run/sync.py`): the first computes a pending
# value, the second ends a closed tape whose launch an interrupt has cut short.
compute: Callable[[Value], None] = _nobody_runs
settle: Callable[[Tape], None] = _nobody_runs


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


class State(threading.local):
    """What kernels reach through one global look-up: the tape that this thread records on.

    >>> y = torch.ones(2, device="pjrt") + 1
    >>> value_of(y).tape is state.tape
    True
    """

    tape: Tape

    def __init__(self) -> None:
        self.tape = Tape()


state = State()


def _position() -> tuple[int, int]:
    """How far this thread has recorded: another one after anything was recorded, read or run."""
    tape = state.tape
    return tape.serial, tape.size


signals.position = _position


@contextmanager
def onto(tape: Tape) -> Iterator[Tape]:
    """What this thread records in the block goes on that tape; then on the one from before.

    A nested one, or a fresh one for what is to run by itself: `run_pending` runs that, after the block.

        spec = contiguous_spec((3,), torch.float32)
        scratch = Tape(nested=True)
        with onto(scratch):
            y = torch.relu(wrap(Value(spec, 0, None), spec))  # which stands for an input of the graph
            graph = graph_of(scratch, [number_on(scratch, value_of(y))])

    Reading a value in the block raises `LoweringError`, and so does the use of one that is pending on another
    tape: a nested tape never runs. It is quiet meanwhile: what a finalizer records or reads
    goes elsewhere.

        >>> with onto(Tape(nested=True)) as tape:
        ...     y = value_of(torch.ones(2, device="pjrt").sin())
        >>> [node.op.name() for node in graph_of(tape, [y.number]).nodes]
        ['aten::ones', 'aten::sin']
    """
    with quiet():
        outer = state.tape
        state.tape = tape
        try:
            yield tape
        finally:
            state.tape = outer


def current() -> Tape:
    """The tape to record on: a fresh one where another thread has closed the last.

    >>> current() is state.tape
    True
    """
    tape = state.tape
    if tape.closed:
        settle(tape)
        if state.tape is tape:
            state.tape = tape.successor()
    return state.tape


def number_on(tape: Tape, value: Value) -> int:
    """The value's number on this tape; registers it as an input if need be.

    >>> x = value_of(torch.ones(2).to("pjrt"))
    >>> with onto(Tape(nested=True)) as tape:
    ...     number_on(tape, x)
    -1
    """
    return value.number if value.tape is tape else tape.take(value)


def origin_on(tape: Tape, value: Value) -> int | None:
    """The input of this tape whose memory may be reused for what takes the value's place in its buffer."""
    number = number_on(tape, value)
    return number if number < 0 else value.origin


def push(signature: Signature, *inputs: Value, ints: tuple[int, ...] = ()) -> Value:
    """Record a node of one result; the value that it makes. `ints` are the numbers of the call.

    An interrupt (Ctrl-C) comes before the node is on the tape or after: between, nothing is called.
    """
    while True:
        tape = current()
        code = (signature, *[number_on(tape, v) for v in inputs])
        values = tape.values
        n = tape.size
        made = Value(signature.outs[0], n, tape)
        if tape.closed or tape.size != n:
            continue
        tape.code += code
        tape.ints += ints
        tape.size = n + 1
        values.append(made)
        return made
