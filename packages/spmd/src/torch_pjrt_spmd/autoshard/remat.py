"""Rematerialization as a choice: what the forward pass of layers that repeat keeps for backward, or computes
again.

Where layers are computed again, of what they keep for backward only one layer's is in memory, besides the
inputs of all; and all of their operators are paid twice. `torch.utils.checkpoint` around each layer does
that. The problem is built both ways, and the cheaper plan is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from torch_pjrt_spmd.autoshard.operators import Operators
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.repeats import Run, Tied
from torch_pjrt_spmd.autoshard.views import Views, is_view

Alive = Mapping[tuple[int, int], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Of one run of layers: the modules that they are; what they keep, by class and result; their classes."""

    run: Run
    modules: tuple[str, ...]
    kept: frozenset[tuple[int, int]]
    inside: frozenset[int]


def choices_of(
    recorded: Recorded,
    operators: Operators,
    tied: Tied,
    views: Views,
    alive: Alive,
) -> list[Choice]:
    """Those of a graph."""
    found = []
    readers: dict[int, list[int]] = {}
    for i, op in enumerate(operators.all):
        for v in op.inputs:
            readers.setdefault(views.base[v], []).append(i)
    later = [range(r.start, r.start + r.period * r.copies) for r in tied.runs]
    for run in tied.runs:
        first = range(run.start, run.start + run.period)
        carried = _carried(operators, views, run)
        kept = []
        for i in first:
            op, number = operators.all[i], tied.of_operator[i]
            for k, v in enumerate(op.outputs):
                if (number, k) not in alive or is_view(op) or v in carried:
                    continue
                copies = int(alive[number, k].max())
                members = tied.operators[number]
                in_layers = (
                    operators.all[m].outputs[k] for m in members
                )  # the first's may end a run
                of_other_run = any(
                    i in other
                    for w in in_layers
                    for i in readers.get(w, ())
                    for other in later
                    if other.start > run.start
                )
                if of_other_run and copies > 2 and copies >= run.copies - 1:
                    kept.append((number, k))
        modules = _modules(recorded, operators, tied, run)
        if kept and modules:
            inside = frozenset(tied.of_operator[i] for i in first)
            found.append(Choice(run, modules, frozenset(kept), inside))
    return found


def _carried(operators: Operators, views: Views, run: Run) -> set[int]:
    """Values of the first layer that the second one reads."""
    own = {v for op in operators.all[run.start : run.start + run.period] for v in op.outputs}
    second = operators.all[run.start + run.period : run.start + 2 * run.period]
    read = {views.base[v] for op in second for v in op.inputs}
    return own & read


def _modules(recorded: Recorded, operators: Operators, tied: Tied, run: Run) -> tuple[str, ...]:
    """The paths that the parameters of each layer begin with, up to the layer's number."""
    for i in range(run.start, run.start + run.period):
        for v in operators.all[i].inputs:
            if v >= 0:
                continue
            members = tied.inputs[tied.of_input[-v - 1]]
            names = [recorded.inputs[m].name.split(".") for m in members]
            if len(names) < run.copies or len({len(n) for n in names}) > 1:
                continue
            differing = [
                d for d, parts in enumerate(zip(*names, strict=True)) if len(set(parts)) > 1
            ]
            if len(differing) == 1:
                return tuple(".".join(n[: differing[0] + 1]) for n in names)
    return ()
