"""Sync: everything live on the tape becomes one program, runs, and the tape starts anew.

One program is made and launched at a time; threads that record are not held up by it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import jax

from torch_pjrt.client.client import client
from torch_pjrt.client.stack_elements import spread
from torch_pjrt.compile.joint import Answer
from torch_pjrt.compile.programs import program_for
from torch_pjrt.errors import DeviceFull, LaunchRefused, LoweringError
from torch_pjrt.graph import tape as tapes
from torch_pjrt.graph.tape import Tape, Value, current, lost, state
from torch_pjrt.observe.causes import READING
from torch_pjrt.observe.compilations import note_lines_if_logged
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.stops import syncing
from torch_pjrt.references import counts, held_elsewhere
from torch_pjrt.run import together
from torch_pjrt.run.deferred_checks import look
from torch_pjrt.run.fills import fill
from torch_pjrt.run.garbage import after_launch
from torch_pjrt.session import session
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_pjrt.compile.programs import Program


class _Runs:
    """Who makes and launches programs.

    lock      one at a time: whoever has it.
    running   the tapes that its thread is running: the last was begun within the one before it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running: list[Tape] = []

    def after_fork(self) -> None:
        """The thread that held the lock is not there to give it back."""
        self.lock = threading.RLock()
        self.running.clear()


_runs = session.own("tapes that are run", _Runs())
_running = _runs.running


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While the block runs, no other thread makes or launches a program."""
    with _runs.lock:
        yield


# How many programs may be tried after a failure: enough to find one value among some ten thousand.
_ATTEMPTS = 32


_NOTHING_TAKEN: dict[int, int] = {}

# Asked after a launch for an error to raise; `diagnostics/nan_check.py` puts one here. Nothing is donated
# then, so that it can look at what the program was given.
checker: Callable[[Tape, tuple[int, ...]], Exception | None] | None = None

# Told of each launch, while the tape still has its inputs and values; `replays/observation.py` listens.
listeners: list[Callable[[Tape, Program], None]] = session.own("who is told of launches", [])


def sync(cause: str) -> None:
    """Run what is pending and live, as one program. Returns when it is launched, not when it is done.

    `cause` is counted for the report. Raises `CompileError` or `LoweringError` if the program cannot be made.
    Then what does not depend on the operator at fault is computed all the same, the rest is lost (reading
    it raises `LostValue`), and recording goes on with a fresh tape. After `LaunchRefused` nothing is lost:
    the tape is as it was.
    """
    with _runs.lock:  # if another thread runs this thread's tape, wait for it
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
    after_launch()


def _no_values(cause: str) -> LoweringError:
    return LoweringError(
        "What is recorded as a part of a program needs the value of a tensor.",
        saw=f"a sync because of {cause}",
        expected="operators that can be recorded without looking at values",
    )


def cut(tape: Tape) -> Tape:
    """Sync if the tape has more operators than `settings.tape_limit`; the tape to go on with.

    Called where it has more values: an operator over lists makes many of them.

        >>> tape = cut(state.tape)  # after appending many nodes
    """
    if not tape.nested and len(tape.values) - tape.n_further > settings.tape_limit:
        sync("the tape's limit")
    return state.tape


def run_pending(tape: Tape, cause: str) -> None:
    """Run what is pending on a tape, of whichever thread, as `sync` does.

    >>> with onto(Tape()) as tape:
    ...     y = value_of(torch.ones(2, device="pjrt") + 1)
    >>> run_pending(tape, "my package")
    >>> y.array
    Array([2., 2.], dtype=float32)
    """
    with _runs.lock:
        if tape.values and not tape.ended and tape not in _running:
            _sync(tape, cause)


def materialize(value: Value) -> None:
    """Make sure that the value is on the device: run the tape that it is pending on, of whichever thread."""
    if value.array is not None:
        return
    with _runs.lock:
        tape = value.tape
        if value.array is None and tape is not None and tape.values:
            _sync(state.tape if state.tape.nested else tape, READING)
    if value.array is None:
        if state.tape.nested:
            raise _no_values(READING)
        raise lost(value)
    look()


def _run(tape: Tape, cause: object) -> None:
    """Run a tape to its end, or leave it as it was, or as one that failed: at no moment is it between.

    What makes that so, whatever is raised wherever (an interrupt may be): `tape.box` gets the results in the
    instant in which the program takes its inputs' memory, and what follows can be repeated.
    """
    client()  # raises in a forked process, in which a launch would end it
    if tape in _running:
        _run_within(tape, cause)
        return
    tape.closed = True
    found = None
    live: tuple[int, ...] = ()
    try:
        _running.append(tape)
        if not tape.box:
            live = live_values(tape.values)
            found = _launch(tape, live, cause)
    except BaseException as error:
        if tape.box or tape.ended:
            _end(tape)
        elif (isinstance(error, LaunchRefused) and tape.joint is None) or not isinstance(
            error, Exception
        ):
            tape.closed = state.tape is not tape  # nothing is lost: who reads runs it
        else:
            _fail(tape, live, error)
        raise
    finally:
        if _running and _running[-1] is tape:
            _running.pop()
    _end(tape)
    if found is not None:
        try:
            raise found
        finally:
            del found  # its traceback holds this frame, and with it the tape


def _launch(tape: Tape, live: tuple[int, ...], cause: object) -> Exception | None:
    """Make the program of these values and launch it; what the checker has found."""
    if not live and tape.joint is None:
        tape.ended = True
        return None
    if not listeners and tape.joint is None and fill(tape, live):
        tape.ended = True
        return None
    reusable = (
        reusable_inputs(tape, live) if checker is None and client().donates else _NOTHING_TAKEN
    )
    if tape.joint is not None and not _is_one_program(tape, live, reusable, cause):
        return None
    program = program_for(tape, live, reusable, cause)
    if not tape.box:  # else a finalizer, or a pass, has read what this tape computes
        tape.program = program
        program.run(tape, reusable, tape.box)
    _store(tape)
    tape.ended = True
    for listener in listeners:
        listener(tape, tape.program)
    return checker(tape, live) if checker is not None and tape.joint is None else None


def _is_one_program(
    tape: Tape, live: tuple[int, ...], reusable: dict[int, int], cause: object
) -> bool:
    """Whether a tape that other processes take part in is to be run as one program; else it has been run."""
    answer = together.asked(tape, live, reusable, cause)
    if answer is not Answer.TOGETHER:
        together.run_apart(tape, live, reusable, cause, answer)
    elif live:
        return True
    else:
        tape.ended = True
    return False


def _run_within(tape: Tape, cause: object) -> None:
    """Run a tape that this thread runs already: its program is being made, or what it gave is being stored.

    So it is where a pass, a rule or a finalizer reads a tensor. Nothing is donated, and who runs the tape
    finds it done.
    """
    if not tape.box:
        program = program_for(tape, live_values(tape.values), _NOTHING_TAKEN, cause)
        box: list[Any] = []
        with jax.ensure_compile_time_eval():  # and not as a part of what JAX is tracing
            program.run(tape, _NOTHING_TAKEN, box)
        if not tape.box:
            tape.program = program
            tape.box += box
    _store(tape)


def _store(tape: Tape) -> None:
    """Give the live values what the program gave. Doing so again does no harm."""
    program: Program | None = tape.program
    assert program is not None
    values = tape.values
    for number, array in zip(program.outputs, spread(program.boundary, tape.box[0]), strict=True):
        values[number].array = array


def _end(tape: Tape) -> None:
    """What comes after a launch; doing so again does no harm, and `settle` does, after an interrupt."""
    if not tape.ended:
        if tape.box:
            _store(tape)
        tape.ended = True
    _start_anew(tape)


def settle(tape: Tape) -> None:
    """Have a closed tape that this thread has left its launch for ended, if an interrupt came before that."""
    if tape.values and (tape.box or tape.ended) and tape not in _running:
        with _runs.lock:
            _end(tape)


def _fail(tape: Tape, live: tuple[int, ...], error: Exception) -> None:
    """The program could not be made or launched: what can be had is."""
    tape.failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    try:
        if tape.joint is not None:
            together.fail(tape, live, "an error in the whole", error)
        elif isinstance(error, DeviceFull):
            # Little can be had now, and each attempt may compile for long.
            _salvage(tape, _take_back_writes(tape, live), 2)
        else:
            _salvage(tape, live, _ATTEMPTS)
    except BaseException:  # an interrupt
        _take_back_writes(tape, live)
        raise
    finally:
        tape.ended = True
        _start_anew(tape)


def _take_back_writes(tape: Tape, live: tuple[int, ...]) -> tuple[int, ...]:
    """What would have been written in place holds again what it held before; the other live values.

    So a smaller batch can be tried: all parameters and all state of an optimizer are those of the last step.
    What the device took before it failed cannot be had back.
    """
    given_back = _take_back_shared(tape)
    others = []
    for number in live:
        value = tape.values[number]
        if value.array is not None:
            continue
        origin = value.origin
        before = None if origin in given_back else _array_before(tape, origin)
        if before is not None:
            value.array = before
        else:
            others.append(number)
    return tuple(others)


def _take_back_shared(tape: Tape) -> set[int | None]:
    """Have each tensor that was given another's value (`q.copy_(p)`) hold what it held before, or nothing.

    Returns the inputs that these held: what has their place is no longer what it was given.
    """
    found: set[int | None] = set()
    for held, spec, origin in tape.shared:
        if origin is not None:
            found.add(origin)
        buffer = held()
        if buffer is None:
            continue
        before = _array_before(tape, origin) if buffer.spec is spec else None
        buffer.value = Value(spec, -1, tape) if before is None else Value.of_array(spec, before)
    return found


def _array_before(tape: Tape, origin: int | None) -> Any:
    """What that input of the tape holds; None if there is none, or if the device has taken it."""
    array = None if origin is None else tape.inputs[~origin].array
    return None if array is None or array.is_deleted() else array


def _salvage(tape: Tape, live: tuple[int, ...], attempts: int) -> None:
    """Compute those of the values that can be: by halves, and the halves of halves that fail."""
    parts = deque(_halves(live))
    for _ in range(attempts):
        if not parts:
            return
        part = parts.popleft()
        try:
            program = program_for(tape, part, _NOTHING_TAKEN, "an error in the whole")
            box: list[Any] = []
            program.run(tape, _NOTHING_TAKEN, box)
        except Exception:
            parts += _halves(part)
            continue
        for number, array in zip(program.outputs, spread(program.boundary, box[0]), strict=True):
            tape.values[number].array = array
        for listener in listeners:
            listener(tape, program)


def _halves(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    middle = len(numbers) // 2
    return [numbers[:middle], numbers[middle:]] if middle else []


def _start_anew(tape: Tape) -> None:
    """A fresh tape; the old one lets go of its values, so that only their buffers hold them.

    What the signatures in `code` and the functions in `kept` hold may have finalizers: those go last.
    """
    from torch_pjrt.graph.generator import generator

    generator.advance(tape)
    tape.closed = True
    note_lines_if_logged()
    if state.tape is tape:  # else its own thread will see that it is closed
        state.tape = tape.successor()
    tape.inputs.clear()
    tape.values.clear()
    tape.box.clear()
    tape.code.clear()
    tape.kept.clear()


def live_values(values: Sequence[Value]) -> tuple[int, ...]:
    """The numbers of those that somebody besides the tape holds."""
    return tuple([v.number for v in held_elsewhere(values)])


def reusable_inputs(tape: Tape, live: Sequence[int]) -> dict[int, int]:
    """Inputs whose place a live value takes and that nobody else holds: input number -> value number.

    Their memory is donated to the program. Shape and dtype agree: both filled one buffer, or the input was
    donated to one like it.
    """
    values, inputs = tape.values, tape.inputs
    aliased: dict[Any, int] = {values[number].origin: number for number in reversed(live)}
    aliased.pop(None, None)
    if tape.donated:
        there = set(live).difference(aliased.values())
        aliased = {origin: n for origin, n in tape.donated.items() if n in there} | aliased
    if not aliased:
        return {}
    of_values, of_arrays = counts(inputs), counts(map(_array_of, inputs))
    return {
        origin: aliased[origin]
        for origin in sorted(aliased, reverse=True)
        if not of_values[~origin] and not of_arrays[~origin]
    }


_array_of = attrgetter("array")

tapes.compute, tapes.settle = materialize, settle
