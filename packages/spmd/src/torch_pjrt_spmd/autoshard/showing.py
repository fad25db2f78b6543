"""A plan as tables for the terminal, by rich, and as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from torch_pjrt_spmd.spec import Entry, axes_of

if TYPE_CHECKING:
    from torch_pjrt.extend import Table as Rows
    from torch_pjrt_spmd.autoshard.plan import Placement, Plan

_WIDTH = 150
_MOST = 24  # rows of a table of exchanges


def text(plan: Plan) -> str:
    """The tables of a plan."""
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, highlight=False)
    console.print(_summary(plan))
    console.print(_placements(plan))
    if plan.activations:
        console.print(_activations(plan))
    if plan.exchanges:
        console.print(_exchanges(plan))
    for note in plan.notes:
        console.print(f"note: {note}")
    return out.getvalue()


def table_text(rows: Rows) -> str:
    """A table of the reports' kind, as text."""
    table = Table(title=rows.title)
    for head in rows.headings:
        table.add_column(head)
    for row in rows.rows:
        table.add_row(
            *("" if x is None else f"{x:,}" if isinstance(x, int) else str(x) for x in row)
        )
    out = io.StringIO()
    Console(file=out, width=_WIDTH, highlight=False).print(table)
    return out.getvalue()


def said(spec: Sequence[Entry]) -> str:
    """A spec in few letters: `data, -` for ("data", None)."""
    return ", ".join("+".join(axes_of(e)) or "-" for e in spec) or "whole"


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:,.4g} {unit}"
        n = n / 1024  # pyright: ignore[reportAssignmentType]
    return f"{n:,.4g} GiB"


def _summary(plan: Plan) -> Table:
    mesh = " x ".join(f"{name} {n}" for name, n in plan.mesh.items())
    table = Table(title=f"Plan for {mesh} ({plan.figures.name})", show_header=False)
    memory = plan.memory
    limit = "" if memory.limit is None else f" of {_size(memory.limit)}"
    gap = "the least" if plan.proven else f"at least {plan.lower_bound_s * 1e3:,.3f}"
    for name, value in (
        ("a step, estimated", f"{plan.seconds * 1e3:,.3f} ms ({gap})"),
        ("    computing, memory's bandwidth", f"{plan.compute_s * 1e3:,.3f} ms"),
        ("    exchanging", f"{plan.exchanged_s * 1e3:,.3f} ms"),
        ("products on a chip", f"{plan.flops:,} operations"),
        ("memory of a chip", f"{_size(memory.peak)}{limit}"),
        ("    parameters", _size(memory.parameters)),
        ("    optimizer state", _size(memory.states)),
        ("    inputs and others", _size(memory.inputs + memory.others)),
        ("    activations and gradients", _size(memory.activations)),
        ("    within operators, and copies", _size(memory.between)),
        ("    of these two in vector memory", _size(memory.vector) if memory.vector else ""),
        ("found in", ", ".join(f"{name} {s:.1f} s" for name, s in plan.took.items())),
    ):
        if value:
            table.add_row(name, value)
    if plan.rematerialized:
        table.add_row("computed again in backward", _few(plan.rematerialized))
    return table


def _few(names: Sequence[str]) -> str:
    return (
        ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}, {len(names)} modules"
    )


def _named(placement: Placement) -> str:
    n = len(placement.names)
    return placement.name if n == 1 else f"{placement.name} and {n - 1} like it"


def _placements(plan: Plan) -> Table:
    table = Table(title="Parameters, inputs and optimizer state")
    for head in ("tensor", "shape", "lies", "bytes", "on a chip", "else", "costs more", "because"):
        table.add_column(head, overflow="fold")
    for p in plan.placements:
        table.add_row(
            _named(p),
            f"{p.dtype}{list(p.shape)}",
            said(p.spec) + (" (fixed)" if p.fixed else ""),
            _size(p.n_bytes),
            _size(p.chip_bytes),
            "" if p.alternative is None else said(p.alternative),
            "" if p.alternative_s is None else f"{p.alternative_s * 1e6:,.1f} us",
            p.because,
        )
    return table


def _activations(plan: Plan) -> Table:
    table = Table(title="Results of modules, and arguments that they take otherwise")
    for head in ("module", "shape", "lies", "bytes", "on a chip"):
        table.add_column(head, overflow="fold")
    for p in plan.activations:
        table.add_row(
            _named(p) + (", its argument" if p.role == "argument" else ""),
            f"{p.dtype}{list(p.shape)}",
            said(p.spec) + (" (fixed)" if p.fixed else ""),
            _size(p.n_bytes),
            _size(p.chip_bytes),
        )
    return table


def _exchanges(plan: Plan) -> Table:
    table = Table(title="What chips exchange")
    for head in ("kind", "along", "bytes", "runs", "s", "of"):
        table.add_column(head)
    rows = sorted(plan.exchanges, key=lambda e: -e.seconds)
    for e in rows[:_MOST]:
        table.add_row(
            e.kind, ", ".join(e.axes), f"{e.n_bytes:,}", str(e.runs), f"{e.seconds:.2e}", e.what
        )
    if len(rows) > _MOST:
        rest = sum(e.seconds for e in rows[_MOST:])
        table.add_row(f"{len(rows) - _MOST} more", "", "", "", f"{rest:.2e}", "")
    return table


_COLOURS = ("#4e79a7", "#f28e2b", "#e15759", "#76b7b2", "#59a14f", "#edc948", "#b07aa1", "#9c755f")


def svg(plan: Plan) -> str:
    """Two bars, time and memory, and a row for each parameter: how much of it a chip has."""
    times: dict[str, float] = {"computing": plan.compute_s}
    for e in plan.exchanges:
        name = f"{e.kind} along {', '.join(e.axes)}"
        times[name] = times.get(name, 0.0) + e.seconds
    memory = plan.memory
    sizes = {
        "parameters": memory.parameters,
        "optimizer state": memory.states,
        "inputs and others": memory.inputs + memory.others,
        "activations and gradients": memory.activations,
        "within operators, and copies": memory.between,
    }
    parts = [
        *_bar(30, f"a step: {plan.seconds * 1e3:,.3f} ms", times, max(plan.seconds, 1e-12)),
        *_bar(110, f"memory of a chip: {_size(memory.peak)}", sizes, max(memory.peak, 1)),
    ]
    y = 200
    for p in plan.placements:
        if p.role != "parameter" or len(p.shape) < 2:
            continue
        width = max(2.0, 300.0 * p.chip_bytes / max(p.n_bytes, 1))
        label = escape(f"{_named(p)}  {list(p.shape)}  {said(p.spec)}")
        parts.append(
            f'<rect x="20" y="{y}" width="300" height="14" fill="#eee" stroke="#999"/>'
            f'<rect x="20" y="{y}" width="{width:.1f}" height="14" fill="{_COLOURS[0]}"/>'
            f'<text x="330" y="{y + 11}" font-size="11">{label}</text>'
        )
        y += 20
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="900" height="{y + 20}" '
            'font-family="sans-serif">',
            '<rect width="100%" height="100%" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _bar(y: int, title: str, parts: dict[str, float] | dict[str, int], whole: float) -> list[str]:
    found = [f'<text x="20" y="{y}" font-size="12">{escape(title)}</text>']
    x, legend = 20.0, 20.0
    for (name, value), colour in zip(
        sorted(parts.items(), key=lambda i: -i[1]), _COLOURS, strict=False
    ):
        width = 860 * value / whole
        found.append(
            f'<rect x="{x:.1f}" y="{y + 8}" width="{width:.1f}" height="20" fill="{colour}"/>'
        )
        if width > 4:
            found.append(
                f'<rect x="{legend:.1f}" y="{y + 36}" width="8" height="8" fill="{colour}"/>'
                f'<text x="{legend + 12:.1f}" y="{y + 44}" font-size="10">{escape(name)}</text>'
            )
            legend += 24 + 6.0 * len(name)
        x += width
    return found
