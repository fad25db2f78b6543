"""Sync: everything live on the tape becomes one program, runs, and the tape starts anew.

One program is made and launched at a time; threads that record are not held up by it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch_pjrt.compile.programs import program_for
from torch_pjrt.errors import DeviceFull, LoweringError, TooManyPrograms
from torch_pjrt.graph.tape import Tape, Value, current, lost, state
from torch_pjrt.observe.causes import READING
from torch_pjrt.observe.compilations import note_lines_if_logged
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.stops import syncing
from torch_pjrt.run.client import client
from torch_pjrt.run.watch import look
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_pjrt.compile.programs import Program

_lock = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While the block runs, no other thread makes or launches a program."""
    with _lock:
        yield


def _renew_lock() -> None:
    """In a forked process: the thread that held the lock is not there to give it back."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

# How many programs may be tried after a failure: enough to find one value among some ten thousand.
_ATTEMPTS = 32


# Asked after a launch for an error to raise; `observe/nan_check.py` puts one here. Nothing is donated
# then, so that it can look at what the program was given.
checker: Callable[[Tape, tuple[int, ...]], Exception | None] | None = None

# Told of each launch, while the tape still has its inputs and values; `replays/observation.py` listens.
listeners: list[Callable[[Tape, Program], None]] = []


def sync(cause: str) -> None:
    """Run what is pending and live, as one program. Returns when it is launched, not when it is done.

    `cause` is counted for the report. Raises `CompileError` or `LoweringError` if the program cannot be made.
    Then what does not depend on the operator at fault is computed all the same, the rest is lost (reading
    it raises `LostValue`), and recording goes on with a fresh tape. After `TooManyPrograms` nothing is lost:
    the tape is as it was.
    """
    with _lock:  # if another thread runs this thread's tape, wait for it
        tape = current()
        if not tape.code:
            if tape.inputs or tape.draws:
                _start_anew(tape)
            return
        _sync(tape, cause)
    look()


def _sync(tape: Tape, cause: str) -> None:
    if tape.nested:
        raise _no_values(cause)
    here = syncing(cause, len(tape.values))
    counters.syncs[here.cause] += 1
    before = counters.sync_s
    try:
        with counters.timed("sync_s"):
            _run(tape, here)
    finally:
        here.seconds += counters.sync_s - before


def _no_values(cause: str) -> LoweringError:
    return LoweringError(
        "A decomposition needs the value of a tensor.",
        saw=f"a sync because of {cause}",
        expected="operators that can be recorded without looking at values",
    )


def cut(tape: Tape) -> Tape:
    """Sync if the tape has more operators than `settings.tape_bound`; the tape to go on with.

    Called where it has more values: an operator over lists makes many of them.
    """
    if not tape.nested and len(tape.values) - tape.n_further > settings.tape_bound:
        sync("the tape's bound")
    return state.tape


def materialize(value: Value) -> None:
    """Make sure that the value is on the device: run the tape that it is pending on, of whichever thread."""
    if value.array is not None:
        return
    with _lock:
        tape = value.tape
        if value.array is None and tape is not None and tape.values:
            _sync(state.tape if state.tape.nested else tape, READING)
    if value.array is None:
        if state.tape.nested:
            raise _no_values(READING)
        raise lost(value)
    look()


def _run(tape: Tape, cause: object) -> None:
    client()  # raises in a forked process, in which a launch would end it
    tape.closed = True
    found = None
    try:
        live = live_values(tape.values)
        if live:
            may_donate = checker is None and client().donates
            _launch(tape, live, reusable_inputs(tape, live) if may_donate else {}, cause)
            if checker is not None:
                found = checker(tape, live)
    except TooManyPrograms:
        tape.closed = False
        raise
    except Exception as error:
        tape.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if isinstance(error, DeviceFull):
            live = _take_back_writes(tape, live)
            # Little can be had now, and each attempt may compile for long.
            _salvage(tape, live, 2)
        else:
            _salvage(tape, live, _ATTEMPTS)
        _start_anew(tape)
        raise
    except BaseException:  # an interrupt: nothing is lost
        tape.closed = False
        raise
    _start_anew(tape)
    if found is not None:
        raise found


def _launch(tape: Tape, live: tuple[int, ...], reusable: dict[int, int], cause: object) -> None:
    program = program_for(tape, live, reusable, cause)
    arrays = program.run(tape, reusable)
    values = tape.values
    for number, array in zip(program.outputs, arrays, strict=True):
        values[number].array = array
    for listener in listeners:
        listener(tape, program)


def _take_back_writes(tape: Tape, live: tuple[int, ...]) -> tuple[int, ...]:
    """What would have been written in place holds again what it held before; the other live values.

    So a smaller batch can be tried: all parameters and all state of an optimizer are those of the last step.
    What the device took before it failed cannot be had back.
    """
    others = []
    for number in live:
        value = tape.values[number]
        before = tape.inputs[-value.origin - 1].array if value.origin is not None else None
        if before is not None and not before.is_deleted():
            value.array = before
        else:
            others.append(number)
    return tuple(others)


def _salvage(tape: Tape, live: tuple[int, ...], attempts: int) -> None:
    """Compute those of the values that can be: by halves, and the halves of halves that fail."""
    parts = deque(_halves(live))
    for _ in range(attempts):
        if not parts:
            return
        part = parts.popleft()
        try:
            _launch(tape, part, {}, "an error in the whole")
        except Exception:
            parts += _halves(part)


def _halves(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(numbers) // 2
    return [numbers[:middle], numbers[middle:]] if middle else []


def _start_anew(tape: Tape) -> None:
    """A fresh tape; the old one lets go of its values, so that only their buffers hold them."""
    from torch_pjrt.device.generator import generator

    generator.advance(tape)
    tape.closed = True
    note_lines_if_logged()
    if state.tape is tape:  # else its own thread will see that it is closed
        state.tape = Tape()
    tape.values.clear()
    tape.inputs.clear()
    tape.kept.clear()


def live_values(values: Sequence[Value]) -> tuple[int, ...]:
    """The numbers of those that somebody besides the tape holds."""
    count, alone = sys.getrefcount, _ALONE
    return tuple([v.number for v in values if count(v) > alone])


def _alone() -> int:
    """The reference count that `live_values` sees for a value which only the tape's list holds."""
    count = sys.getrefcount
    values = [object()]
    [alone] = [count(v) for v in values]
    return alone


_ALONE = _alone()


def reusable_inputs(tape: Tape, live: Sequence[int]) -> dict[int, int]:
    """Inputs whose place a live value takes and that nobody else holds: input number -> value number.

    Their memory is donated to the program. Shape and dtype agree: both filled one buffer, or the input was
    given away to one like it.
    """
    values, inputs = tape.values, tape.inputs
    heirs: dict[Any, int] = {values[number].origin: number for number in reversed(live)}
    heirs.pop(None, None)
    if tape.given:
        there = set(live).difference(heirs.values())
        heirs = {origin: n for origin, n in tape.given.items() if n in there} | heirs
    if not heirs:
        return {}
    of_values = list(map(sys.getrefcount, inputs))
    of_arrays = list(map(sys.getrefcount, map(_array_of, inputs)))
    return {
        origin: heirs[origin]
        for origin in sorted(heirs, reverse=True)
        if of_values[~origin] <= _ALONE_IN_MAP and of_arrays[~origin] <= _ALONE_IN_MAP
    }


_array_of = attrgetter("array")
# The reference count that `reusable_inputs` sees for what only one list, or one value, holds.
[_ALONE_IN_MAP] = map(sys.getrefcount, [object()])
