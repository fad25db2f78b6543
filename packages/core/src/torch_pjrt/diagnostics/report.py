"""`torch_pjrt.report()`: what this process did so far, as tables, as a dict, in one line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch_pjrt.caches import Fill, fills
from torch_pjrt.compile.programs import programs_in_memory
from torch_pjrt.diagnostics.sections import tables_of
from torch_pjrt.graph.line import Line
from torch_pjrt.observe.code_positions import shown
from torch_pjrt.observe.compilations import Compilation, compilations
from torch_pjrt.observe.counters import counters
from torch_pjrt.observe.stops import Stop, stops
from torch_pjrt.observe.tables import Shown, Table

_MOST_ROWS = 12  # of each table as text; the dict has all


@dataclass(frozen=True, slots=True, repr=False)
class Report(Shown):
    """A snapshot. Times are seconds of host time.

    What packages add is of the programs that are in memory when it is printed.

    counts          the counters by name.
    programs        the programs compiled, in order; the last thousand.
    stops           where the program stopped for the device, those first that took the longest.
    caches          how full the caches of what recording has learnt are.
    """

    counts: dict[str, Any]
    programs: Sequence[Compilation]
    stops: Sequence[Stop]
    caches: Sequence[Fill] = ()

    def as_dict(self) -> dict[str, Any]:
        """Everything, of plain types.

        Every counter by name: ints, floats (seconds), and dicts of counts for `syncs`, `fallbacks` and
        `not_kept` (why programs were not kept on disk). Beside
        them lists of dicts: `programs` (number, operators, inputs, outputs, seconds, loaded, runs),
        `recompilations` (number, operators, kind, what, line, advice, cause, seconds) and `stops` (cause,
        line, syncs, reads, seconds). A line is a tuple of file, number and function, or None. `caches` are
        of name, entries, most, dropped.
        """
        return {
            **self.counts,
            "programs": [_program(p) for p in self.programs],
            "recompilations": [_recompilation(p) for p in self.programs if p.why is not None],
            "stops": [{f.name: _plain(getattr(s, f.name)) for f in fields(s)} for s in self.stops],
            "caches": [asdict(fill) for fill in self.caches],
        }

    def summary(self) -> str:
        """One line."""
        c = self.counts
        return (
            f"{c['operators']} operators in {c['programs_run']} program runs, "
            f"{c['programs_compiled']} compiled in {c['compile_s']:.1f} s, "
            f"{sum(c['syncs'].values())} syncs, "
            f"{sum(c['fallbacks'].values())} fallbacks"
        )

    def _tables(self) -> list[Table]:
        recompiled, stops = _recompiled(self.programs), stop_rows(self.stops)
        return [
            Table("What the process did", ("", ""), totals(self.counts)),
            Table("Programs", _PROGRAMS, _by_size(self.programs)).first(_MOST_ROWS),
            Table("Why it recompiled, the last first", _RECOMPILED, recompiled).first(_MOST_ROWS),
            Table("Where it stopped for the device", STOPS, stops).first(_MOST_ROWS),
            Table("Caches", _CACHES, [(c.name, c.entries, c.most, c.dropped) for c in self.caches]),
            *tables_of(programs_in_memory()),
        ]


_PROGRAMS = ("operators", "programs", "compiled in, s", "runs")
_RECOMPILED = ("program", "operators", "s", "difference", "line", "advice")
_CACHES = ("of", "entries", "most", "dropped")
STOPS = ("cause", "line", "syncs", "reads", "s")  # the headings of `stop_rows`


def report() -> Report:
    """What this process did so far.

    >>> before = torch_pjrt.report().counts["programs_run"]
    >>> (torch.ones(2, device="pjrt") + 1).tolist()
    [2.0, 2.0]
    >>> torch_pjrt.report().counts["programs_run"] - before
    1
    """
    snapshot = {f.name: getattr(counters, f.name) for f in fields(counters)}
    return Report(
        {k: dict(v) if isinstance(v, dict) else v for k, v in snapshot.items()},
        [replace(p) for p in compilations()],
        [replace(s) for s in stops()],
        [fill for fill in fills() if fill.entries],
    )


def totals(c: dict[str, Any]) -> list[tuple[str, str]]:
    """The counters as rows of a name and a text."""
    return [
        ("operators traced", f"{c['operators']:,}"),
        ("programs compiled", f"{c['programs_compiled']} ({c['compile_s']:.2f} s)"),
        ("  found on disk", f"{c['programs_loaded']} ({c['load_s']:.2f} s)"),
        *([("  not kept on disk", _causes(c["not_kept"]))] if c["not_kept"] else []),
        *([("  given back", f"{c['programs_given_back']}")] if c["programs_given_back"] else []),
        ("  loops of repeated layers", f"{c['loops']}"),
        ("stacks made, elements taken", f"{c['stacks_made']}, {c['elements_taken']}"),
        ("programs reused", f"{_reused(c)}"),
        ("syncs", _causes(c["syncs"])),
        ("  host time", f"{c['sync_s']:.3f} s, of which launching {c['launch_s']:.3f} s"),
        ("fallbacks to the CPU", f"{_causes(c['fallbacks'])} ({c['fallback_s']:.3f} s)"),
        ("host to device", _moved(c, "upload")),
        ("device to host", _moved(c, "download")),
        ("inputs donated", f"{c['donated']}"),
    ]


def stop_rows(found: Sequence[Stop]) -> list[tuple[Any, ...]]:
    """Stops as rows of cause, line, syncs, reads and seconds."""
    return [(s.cause, shown(s.line), s.syncs, s.reads, Seconds(s.seconds)) for s in found]


class Seconds(float):
    """A time that is shown with three decimals."""

    def __str__(self) -> str:
        return f"{float(self):.3f}"


def _by_size(programs: Sequence[Compilation]) -> list[tuple[Any, ...]]:
    """A row for each number of operators, the largest first."""
    sizes: dict[int, list[Compilation]] = defaultdict(list)
    for program in programs:
        sizes[program.n_operators].append(program)
    return [
        (size, len(of), Seconds(sum(p.seconds for p in of)), sum(p.runs for p in of))
        for size, of in sorted(sizes.items(), reverse=True)
    ]


def _recompiled(programs: Sequence[Compilation]) -> list[tuple[Any, ...]]:
    return [
        (p.number, p.n_operators, Seconds(p.seconds), p.why.what, shown(p.why.line), p.why.advice)
        for p in reversed(programs)
        if p.why is not None
    ]


def _program(p: Compilation) -> dict[str, Any]:
    return {
        "number": p.number,
        "operators": p.n_operators,
        "inputs": p.n_inputs,
        "outputs": p.n_outputs,
        "seconds": p.seconds,
        "loaded": p.loaded,
        "runs": p.runs,
    }


def _recompilation(p: Compilation) -> dict[str, Any]:
    assert p.why is not None
    return {
        "number": p.number,
        "operators": p.n_operators,
        "kind": p.why.kind,
        "what": p.why.what,
        "line": _plain(p.why.line),
        "advice": p.why.advice,
        "cause": p.cause,
        "seconds": p.seconds,
    }


def _plain(x: Any) -> Any:
    return tuple(x[:3]) if isinstance(x, Line) else x


def _reused(c: dict[str, Any]) -> int:
    return c["programs_run"] - c["programs_compiled"] - c["programs_loaded"]


def _causes(counts: dict[str, int]) -> str:
    each = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda i: -i[1]))
    return f"{sum(counts.values())}" + (f" ({each})" if each else "")


def _moved(c: dict[str, Any], way: str) -> str:
    megabytes = c[f"{way}ed_bytes"] / 1e6
    return f"{c[f'{way}s']} times, {megabytes:.1f} MB, {c[f'{way}_s']:.3f} s"
