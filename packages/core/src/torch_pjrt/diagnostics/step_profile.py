"""`torch_pjrt.profile_step(step)`: which operators a step's time on the device goes to."""

from __future__ import annotations

import re
import statistics
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax

from torch_pjrt.client.wait import wait
from torch_pjrt.compile.programs import Program, anew
from torch_pjrt.diagnostics.instructions import Instruction, Source, instructions_of
from torch_pjrt.diagnostics.launches import launches
from torch_pjrt.diagnostics.trace import profile
from torch_pjrt.observe import lines
from torch_pjrt.observe.tables import Shown, Table
from torch_pjrt.run.sync import sync

_WARM = 3  # calls: the third compiles nothing new in a training loop
_CAUSE = "profile_step()"
_LAYER = re.compile(r"\b\d+\b")

Event = tuple[float, float, int, str]
"""When it began and how long it took, both in ns; the program's number in the trace; the instruction."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An instruction of XLA's and its time a step, without that of instructions that it runs (a loop's).

    ms       the median of its runs, times how often it runs in a step.
    sources  the operators of the user's program that it computes, the one that it is named for first.
    times    how often it runs in a step.
    """

    name: str
    kind: str
    sources: Sequence[Source]
    ms: float
    times: float


@dataclass(frozen=True, slots=True, repr=False)
class StepProfile(Shown):
    """Where a step's time on the device went; `print` shows the ten most expensive of each kind.

    operations  what XLA ran, the most expensive first.
    ms          all of them together, a step. Operations that ran side by side, on several
                threads, count in full, so this may be more than the step took.
    """

    operations: Sequence[Operation]
    shown: int = 10

    @property
    def ms(self) -> float:
        return sum(operation.ms for operation in self.operations)

    def by_operator(self) -> list[tuple[Source, float, int]]:
        """Milliseconds and number of operations by operator; layers of a kind are taken together."""
        ms: defaultdict[Source, float] = defaultdict(float)
        number: Counter[Source] = Counter()
        for operation in self.operations:
            source = operation.sources[0] if operation.sources else Source(operation.kind)
            source = source._replace(module=_LAYER.sub("*", source.module))
            ms[source] += operation.ms
            number[source] += 1
        slowest = sorted(ms.items(), key=itemgetter(1), reverse=True)
        return [(source, each, number[source]) for source, each in slowest]

    def _tables(self) -> list[Table]:
        operators = [
            (f"{ms:.2f}", self._share(ms), n, str(source), source.where, source.module)
            for source, ms, n in self.by_operator()[: self.shown]
        ]
        return [
            Table(f"The most expensive operators, of {self.ms:.2f} ms", _OPERATORS, operators),
            Table(
                f"The most expensive of {len(self.operations)} operations of XLA's",
                _OPERATIONS,
                [self._row(operation) for operation in self.operations[: self.shown]],
            ),
        ]

    def _row(self, operation: Operation) -> tuple[Any, ...]:
        first = operation.sources[0] if operation.sources else Source("")
        fused = ", ".join(dict.fromkeys(str(s) for s in operation.sources[1:] if s.where))
        where = filter(None, (first.where, first.module))
        cells = operation.name, str(first), ", ".join(where), fused
        return (f"{operation.ms:.2f}", self._share(operation.ms), *cells)

    def _share(self, ms: float) -> str:
        return f"{100 * ms / self.ms:.1f} %"


_OPERATORS = ("ms", "share", "operations", "operator", "line", "module")
_OPERATIONS = ("ms", "share", "operation", "operator", "line, module", "fused with it")


def profile_step(step: Callable[[], Any], *, calls: int = 5, shown: int = 10) -> StepProfile:
    """Call `step()` some times and say which operators its time on the device went to.

    step    a function without arguments, a training step for example.
    calls   how many calls are measured, after three that are not.
    shown   how many rows the printed tables have.

    Programs of the step are compiled anew, with source lines, and forgotten afterwards; a captured step
    keeps its own, which say nothing about lines unless they were compiled with them. A fusion is named for
    one of its operators. Where a device's profiler does not name XLA's instructions, there are no operations.

    Raises what `step` raises, and `RuntimeError` if a trace of this process is being taken already.

        >>> x = torch.ones(64, 64, device="pjrt")
        >>> profile = torch_pjrt.profile_step(lambda: (x @ x).sum().item(), calls=2)
        >>> profile.ms == sum(operation.ms for operation in profile.operations)
        True
    """
    sync(_CAUSE)
    with (
        tempfile.TemporaryDirectory() as folder,
        anew(),
        lines.noted(_CAUSE, in_programs=True),
        launches() as launched,
    ):
        _call(step, _WARM)
        with profile(folder):
            _call(step, calls)
        with warnings.catch_warnings():
            # JAX makes a type on the way, of which Python 3.13 warns: as an error that ends the process.
            warnings.simplefilter("ignore", DeprecationWarning)
            threads = [_events(line) for line in _lines(Path(folder))]
    taken: dict[tuple[int, str], list[float]] = {}
    for events in threads:
        for program, name, own_ns in _own_times(events):
            taken.setdefault((program, name), []).append(own_ns)
    named = _instructions(launched, taken)
    operations = [
        Operation(
            name,
            each.kind if (each := named[program].get(name)) else "",
            each.sources if each else (),
            # The median: one run may have been interrupted.
            statistics.median(each_ns) * len(each_ns) / calls / 1e6,
            len(each_ns) / calls,
        )
        for (program, name), each_ns in taken.items()
    ]
    return StepProfile(sorted(operations, key=lambda operation: -operation.ms), shown)


def _call(step: Callable[[], Any], times: int) -> None:
    """Call it, and run what it left pending, what it returned included."""
    for _ in range(times):
        result = step()
        sync(_CAUSE)
        wait()  # while what it gave is held: it may be all that can be waited for
        del result


def _lines(folder: Path) -> Iterator[Any]:
    """The timelines of the trace in the folder, one a thread of the host or a unit of the device."""
    for file in folder.glob("**/*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            yield from plane.lines


def _events(line: Any) -> list[Event]:
    """The instructions that ran, by when they began, those that hold others first."""
    found = []
    for event in line.events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            number = int(stats.get("program_id", 0))
            found.append((event.start_ns, event.duration_ns, number, str(stats["hlo_op"])))
    return sorted(found, key=lambda event: (event[0], -event[1]))


def _own_times(events: Sequence[Event]) -> Iterator[tuple[int, str, float]]:
    """Of each event its program, its name, and its time without that of the events within it, in ns."""
    own = [duration for _, duration, _, _ in events]
    holding: list[int] = []
    for position, (start, duration, _, _) in enumerate(events):
        while holding and events[holding[-1]][0] + events[holding[-1]][1] <= start:
            holding.pop()
        if holding:
            own[holding[-1]] -= duration
        holding.append(position)
    for (_, _, program, name), own_ns in zip(events, own, strict=True):
        yield program, name, own_ns


def _instructions(
    launched: Sequence[Program], ran: Iterable[tuple[int, str]]
) -> dict[int, Mapping[str, Instruction]]:
    """The instructions of each program in the trace: that launched which has most of the names seen."""
    instructions = [instructions_of(p.compiled.as_text() or "") for p in dict.fromkeys(launched)]
    names: dict[int, set[str]] = {}
    for program, name in ran:
        names.setdefault(program, set()).add(name)
    return {
        program: max(instructions, key=lambda each: len(seen & each.keys()), default={})
        for program, seen in names.items()
    }
