"""What an operator has in memory while it runs, besides what it takes and makes."""

from __future__ import annotations

from math import prod

from torch_pjrt_spmd.autoshard.jaxpr_steps import Step, Steps

_VIEWS = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "expand_dims", "copy")


def most_between(steps: Steps) -> list[int]:
    """The variables that are in memory at the step at which most bytes are, but for inputs and results.

    A variable is in memory where a product, a sum or the like makes it, or reads it; others are fused.
    """
    base = list(range(len(steps.shapes)))
    outside = {*steps.inputs}
    stored: dict[int, int] = {}  # and when it is made
    last: dict[int, int] = {}
    fused: dict[
        int, set[int]
    ] = {}  # of what is in memory of that which another variable is computed of
    for t, step in enumerate(steps.steps):
        taken = [base[n] for n in step.taken if n is not None]
        if step.name in _VIEWS and taken:
            base[step.made[0]] = taken[0]
            continue
        for n in taken:
            if step.row.heavy and n not in outside and steps.shapes[n]:
                stored.setdefault(n, t)
            for source in {n, *fused.get(n, ())}:
                last[source] = t
        for n in step.made:
            if _is_made_in_memory(step):
                stored[n] = t
            else:
                fused[n] = {s for m in taken for s in (m, *fused.get(m, ()))}
    outside |= {base[n] for n in steps.outputs if n is not None}
    kept = [n for n in stored if n not in outside]
    best: list[int] = []
    most = 0
    for t in sorted({stored[n] for n in kept}):
        there = [n for n in kept if stored[n] <= t <= last.get(n, stored[n])]
        size = sum(prod(steps.shapes[n]) * steps.itemsizes[n] for n in there)
        if size > most:
            best, most = there, size
    return best


def _is_made_in_memory(step: Step) -> bool:
    return step.row.heavy or bool(step.row.summed) or step.name.startswith(("cum", "sort"))
