"""What a plan expects beside what the compiled program has: collectives, time in them, memory of a chip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch_pjrt.extend import Table
from torch_pjrt_spmd.autoshard.chips import chip_named
from torch_pjrt_spmd.autoshard.network import PICO, Network, network_of

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.plan import Plan
    from torch_pjrt_spmd.reporting import ProgramReport

_NEAR = 0.15  # of what was planned: a difference that is none


@dataclass(frozen=True, slots=True)
class Row:
    """All collectives of a kind along some axes: bytes that each chip gets in a step."""

    kind: str
    axes: tuple[str, ...]
    planned: int
    compiled: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plan and a compiled program.

    rows        by kind and axes. planned_s, compiled_s: in collectives, by the plan's figures of the chip.
    planned_flops, compiled_flops    of a chip in matrix products and convolutions.
    planned_bytes, compiled_bytes    of a chip: parameters, state, inputs, and what is needed between.
    """

    rows: Sequence[Row]
    planned_s: float
    compiled_s: float
    planned_flops: int
    compiled_flops: int
    planned_bytes: int
    compiled_bytes: int | None

    @property
    def differences(self) -> Sequence[Row]:
        """The rows of which the program has another amount than was planned, by more than 15 %."""
        return [r for r in self.rows if abs(r.compiled - r.planned) > _NEAR * max(r.planned, 1)]

    def __str__(self) -> str:
        from torch_pjrt_spmd.autoshard.showing import table_text

        rows: list[tuple[object, ...]] = []
        rows += [(r.kind, ", ".join(r.axes), r.planned, r.compiled) for r in self.rows]
        rows.append(("s in these", "", f"{self.planned_s:.3e}", f"{self.compiled_s:.3e}"))
        rows.append(
            ("FLOPs of a chip", "", f"{self.planned_flops:.3e}", f"{self.compiled_flops:.3e}")
        )
        rows.append(("memory of a chip", "", self.planned_bytes, self.compiled_bytes))
        head = ("", "along", "planned", "compiled")
        return table_text(Table("Planned, and in the compiled program", head, rows))


def compared(plan: Plan, report: ProgramReport, across: Sequence[str] = ()) -> Comparison:
    """A plan beside the report of a program."""
    planned: Counter[tuple[str, tuple[str, ...]]] = Counter()
    compiled: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for e in plan.exchanges:
        planned[e.kind, e.axes] += e.n_bytes * e.runs
    network = network_of(
        list(plan.mesh), list(plan.mesh.values()), chip_named(plan.figures), across
    )
    seconds = 0.0
    for c in report.collectives:
        compiled[c.kind, c.axes] += c.n_bytes * c.runs
        seconds += c.runs * _seconds(network, c.kind, c.n_bytes, c.axes)
    rows = [
        Row(kind, axes, planned[kind, axes], compiled[kind, axes])
        for kind, axes in sorted(planned.keys() | compiled.keys())
    ]
    rows.sort(key=lambda r: -max(r.planned, r.compiled))
    arguments = report.parameter_bytes + report.state_bytes + report.other_bytes
    between = report.temporary_bytes
    return Comparison(
        rows,
        plan.exchanged_s,
        seconds,
        plan.flops,
        report.products,
        plan.memory.main,
        None if between is None else arguments + between,
    )


def _seconds(network: Network, kind: str, n_bytes: int, axes: Sequence[str]) -> float:
    names = [axis.name for axis in network.axes]
    along = [names.index(a) for a in axes if a in names]
    if not along:
        return 0.0
    n = prod(network.axes[a].size for a in along)
    whole = n_bytes * n if kind in ("reduce-scatter", "all-to-all") else n_bytes
    return network.picoseconds(kind, whole, along) / PICO
