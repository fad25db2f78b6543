"""Layers that repeat in a program: which of them are a loop, and what prevented it for the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_pjrt.client.client import client
from torch_pjrt.graph.graph import Graph
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.passes.rolling import RollLayers
from torch_pjrt.passes.runner import Stage, run_passes


@dataclass(frozen=True, slots=True)
class Layers:
    """One repetition: `operators` operators, `trip_count` times, beginning with `first`.

    rolled  whether it is a loop. what: of which kind, or why not.
    """

    trip_count: int
    operators: int
    first: str
    rolled: bool
    what: str

    def row(self) -> tuple[Any, ...]:
        """As a row of a table: how often, how many operators, the first, and what became of it."""
        return (
            self.trip_count,
            self.operators,
            self.first,
            f"{'a loop' if self.rolled else 'no loop'}: {self.what}",
        )


def layers_of(recorded: Graph) -> list[Layers]:
    """Those of a graph as it was recorded, by the settings of now. The passes run once more for it."""
    passes = client().passes
    graph = run_passes([p for p in passes if p.stage < Stage.ROLL], recorded)
    found: list[Layers] = []
    for roll in passes:
        if not isinstance(roll, RollLayers):
            continue
        plan = roll.plan(graph)
        if plan is None:
            continue
        for node in plan.rolled().nodes if plan.wirings else ():
            if isinstance(node.op, LoopOp):
                body = node.op.body.nodes
                described = node.op.described()
                found.append(
                    Layers(node.op.trip_count, len(body), str(body[0].op), True, described)
                )
        found += [Layers(r.trip_count, r.operators, r.first, False, r.why) for r in plan.refused]
    return found
