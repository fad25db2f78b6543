"""Sync: everything live on the tape becomes one program, runs, and the tape starts anew."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from torch_pjrt.compile.programs import program_for
from torch_pjrt.errors import LoweringError
from torch_pjrt.graph.tape import Tape, Value, state
from torch_pjrt.observe.counters import counters
from torch_pjrt.run.client import client

if TYPE_CHECKING:
    from collections.abc import Sequence

_lock = threading.RLock()


def sync(cause: str) -> None:
    """Run what is pending and live, as one program. Returns when it is launched, not when it is done.

    `cause` is counted for the report. Raises `CompileError` or `LoweringError`; the tape is kept then.
    """
    with _lock:
        tape = state.tape
        if not tape.code:
            if tape.inputs or tape.draws:
                _start_anew(tape)
            return
        if tape.nested:
            raise LoweringError(
                "A decomposition needs the value of a tensor.",
                saw=f"a sync because of {cause}",
                expected="operators that can be recorded without looking at values",
            )
        with counters.timed("sync_s"):
            counters.syncs[cause] += 1
            _run(tape)


def cut(tape: Tape) -> Tape:
    """Sync because the tape has grown past `settings.tape_bound`; the tape to go on with."""
    if not tape.nested:
        sync("the tape's bound")
    return state.tape


def materialize(value: Value) -> None:
    """Make sure that the value is on the device."""
    if value.array is None:
        sync("reading a value")


def _run(tape: Tape) -> None:
    client()  # raises in a forked process, in which a launch would end it
    live = live_values(tape.values)
    if live:
        reusable = reusable_inputs(tape, live)
        program = program_for(tape, live, reusable)
        arrays = program.run(tape, reusable)
        values = tape.values
        for number, array in zip(program.outputs, arrays, strict=True):
            values[number].array = array
    _start_anew(tape)


def _start_anew(tape: Tape) -> None:
    """A fresh tape; the old one lets go of its values, so that only their buffers hold them."""
    from torch_pjrt.device.generator import generator

    generator.advance(tape)
    state.tape = Tape()
    tape.values.clear()
    tape.inputs.clear()


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
    """Inputs that a live value took the place of and nobody else holds: input number -> value number.

    Their memory is donated to the program. Shape and dtype agree, since both filled one buffer.
    """
    values, inputs = tape.values, tape.inputs
    heirs: dict[int, int] = {}
    for number in live:
        value = values[number]
        if value.origin is not None:
            heirs.setdefault(value.origin, number)
    del value
    return {
        origin: heir
        for origin, heir in sorted(heirs.items(), reverse=True)
        if _is_held_by_tape_only(inputs, -origin - 1)
    }


def _is_held_by_tape_only(inputs: list[Value], index: int) -> bool:
    return (
        sys.getrefcount(inputs[index]) <= _ALONE_IN_LIST
        and sys.getrefcount(inputs[index].array) <= _ALONE_IN_LIST
    )


def _alone_in_list() -> int:
    items = [object()]
    return sys.getrefcount(items[0])


_ALONE_IN_LIST = _alone_in_list()
