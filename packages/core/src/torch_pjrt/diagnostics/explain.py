"""`torch_pjrt.explain(fn)`: what one run of a function becomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from torch_pjrt.diagnostics.cost import Cost, cost_of
from torch_pjrt.diagnostics.launches import launches
from torch_pjrt.diagnostics.layers import Layers, layers_of
from torch_pjrt.diagnostics.report import STOPS, Seconds, report, stop_rows
from torch_pjrt.diagnostics.sections import tables_of
from torch_pjrt.observe.code_positions import shown
from torch_pjrt.observe.compilations import Compilation
from torch_pjrt.observe.stops import Stop
from torch_pjrt.observe.tables import Shown, Table
from torch_pjrt.run.sync import sync

P = ParamSpec("P")
R = TypeVar("R")

_MOVED = ("uploads", "uploaded_bytes", "downloads", "downloaded_bytes")
_END = "the end of torch_pjrt.explain()"


@dataclass(frozen=True, slots=True)
class Ran:
    """A program that ran: what is known of it, whether it was compiled now, how often it ran, its cost.

    layers    the repeated ones: those that are a loop, and those that might have been.
    """

    program: Compilation
    compiled: bool
    runs: int
    cost: Cost
    layers: Sequence[Layers]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Shown):
    """What one run of a function became.

    result      what the function returned.
    programs    the programs that ran, in the order of their first run.
    breaks      where it stopped for the device in between: a sync ends a program, a read waits for one.
    fallbacks   the operators that ran on the CPU, with how often.
    transfers   `uploads`, `uploaded_bytes`, `downloads`, `downloaded_bytes`.
    sections    what packages say of the programs.
    """

    result: Any
    programs: Sequence[Ran]
    breaks: Sequence[Stop]
    fallbacks: dict[str, int]
    transfers: dict[str, int]
    sections: Sequence[Table] = ()

    def _tables(self) -> list[Table]:
        moved = self.transfers
        rows = [
            ("programs", f"{len(self.programs)}"),
            ("compiled now", f"{sum(ran.compiled for ran in self.programs)}"),
            ("operators", f"{sum(ran.runs * ran.program.n_operators for ran in self.programs):,}"),
            ("syncs in between", f"{sum(stop.syncs for stop in self.breaks)}"),
            ("fallbacks to the CPU", f"{sum(self.fallbacks.values())}"),
            ("host to device", f"{moved['uploads']} times, {moved['uploaded_bytes']:,} bytes"),
            ("device to host", f"{moved['downloads']} times, {moved['downloaded_bytes']:,} bytes"),
        ]
        return [
            Table("What it became", ("", ""), rows),
            Table("Programs", _PROGRAMS, [_row(ran) for ran in self.programs]),
            Table("Layers that repeat", _LAYERS, self._layers()),
            Table("Why they were compiled", _REASONS, self._reasons()),
            Table("Where it stopped for the device", STOPS, stop_rows(self.breaks)),
            Table(
                "Operators that ran on the CPU", ("operator", "times"), [*self.fallbacks.items()]
            ),
            *self.sections,
        ]

    def _layers(self) -> list[tuple[Any, ...]]:
        return [
            (ran.program.number, *layers.row()) for ran in self.programs for layers in ran.layers
        ]

    def _reasons(self) -> list[tuple[Any, ...]]:
        compiled = [ran.program for ran in self.programs if ran.compiled]
        return [
            (p.number, p.why.what, shown(p.why.line), p.why.advice)
            for p in compiled
            if p.why is not None
        ]


_PROGRAMS = (
    "program",
    "operators",
    "inputs",
    "outputs",
    "runs",
    "compiled in, s",
    "flops",
    "bytes accessed",
    "bytes in",
    "bytes out",
    "bytes between",
)
_LAYERS = ("program", "repeated", "operators", "from", "what became of it")
_REASONS = ("program", "difference", "line", "advice")


def explain(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Explanation:
    """Run `fn(*args, **kwargs)` once and say what became of it; `print` shows it as tables.

    What was pending before is run first, and what `fn` left pending is run at the end, so that all of its
    operators are in the programs listed. A run after some others shows a step in full swing, which should
    compile nothing. Flops and bytes are what XLA estimates for one run of a program; None where a device's
    compiler does not say.

    Raises what `fn` raises, and what `torch_pjrt.sync()` raises.

        >>> x = torch.ones(8, device="pjrt")
        >>> explained = torch_pjrt.explain(lambda: (x + 1).sum().item())
        >>> explained.result, len(explained.programs)
        (16.0, 1)
    """
    sync("the start of torch_pjrt.explain()")
    before = report()
    with launches() as launched:
        result = fn(*args, **kwargs)
        sync(_END)
    after = report()
    known = {program.number for program in before.programs}
    distinct = list(dict.fromkeys(launched))
    return Explanation(
        result,
        [
            Ran(
                replace(program.compilation),
                program.compilation.number not in known,
                launched.count(program),
                cost_of(program.compiled),
                layers_of(program.recorded),
            )
            for program in distinct
        ],
        _more_stops(before.stops, after.stops),
        _more(before.counts["fallbacks"], after.counts["fallbacks"]),
        {name: after.counts[name] - before.counts[name] for name in _MOVED},
        tables_of(distinct),
    )


def _row(ran: Ran) -> tuple[Any, ...]:
    p, cost = ran.program, ran.cost
    seconds = Seconds(p.seconds) if ran.compiled else "before"
    figures = (
        cost.flops,
        cost.accessed_bytes,
        cost.argument_bytes,
        cost.output_bytes,
        cost.temporary_bytes,
    )
    return (p.number, p.n_operators, p.n_inputs, p.n_outputs, ran.runs, seconds, *figures)


def _more_stops(before: Sequence[Stop], after: Sequence[Stop]) -> list[Stop]:
    """What came to be between, without the sync at the end."""
    old = {(s.cause, s.line): s for s in before}
    more = []
    for stop in after:
        was = old.get((stop.cause, stop.line), Stop(stop.cause, stop.line))
        syncs, reads = stop.syncs - was.syncs, stop.reads - was.reads
        if (syncs or reads) and stop.cause != _END:
            seconds = stop.seconds - was.seconds
            more.append(replace(stop, syncs=syncs, reads=reads, seconds=seconds))
    return more


def _more(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: n - before.get(name, 0) for name, n in after.items() if n > before.get(name, 0)}
