"""Operators that are several beside each other, as those of optimizers on all parameters, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_pjrt_spmd.autoshard.jaxpr_steps import Step, Steps


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of an operator: the inputs that it takes and the results that it makes, by their place."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: Steps
    key: tuple[object, ...]  # equal for pieces that do the same


def pieces_of(steps: Steps) -> list[Piece]:
    """The parts that have nothing in common but scalars; one, of most operators."""
    if steps.same:  # loops are not taken apart
        return [_piece(steps, list(range(len(steps.outputs))), steps.steps)]
    makers = {n: i for i, step in enumerate(steps.steps) for n in step.made}
    groups: list[tuple[set[int], set[int], list[int]]] = []  # variables, steps, outputs
    owner: dict[int, int] = {}
    for position, number in enumerate(steps.outputs):
        variables, used = _behind(steps, number, makers)
        mine = {owner[v] for v in variables if v in owner}
        merged: tuple[set[int], set[int], list[int]] = (variables, used, [position])
        for g in mine:
            merged[0].update(groups[g][0])
            merged[1].update(groups[g][1])
            merged[2].extend(groups[g][2])
            groups[g] = (set(), set(), [])
        groups.append(merged)
        owner.update(dict.fromkeys(merged[0], len(groups) - 1))
    found = [(sorted(outs), used) for _, used, outs in groups if outs]
    if len(found) == 1:
        return [_piece(steps, found[0][0], steps.steps)]
    return [_piece(steps, outs, [steps.steps[i] for i in sorted(used)]) for outs, used in found]


def _behind(steps: Steps, number: int | None, makers: dict[int, int]) -> tuple[set[int], set[int]]:
    """What a result depends on: variables that are no scalars, and equations."""
    variables: set[int] = set()
    used: set[int] = set()
    ahead = [] if number is None else [number]
    seen = set(ahead)
    while ahead:
        v = ahead.pop()
        if steps.shapes[v]:
            variables.add(v)
        step = makers.get(v)
        if step is not None and step not in used:
            used.add(step)
            for n in steps.steps[step].taken:
                if n is not None and n not in seen:
                    seen.add(n)
                    ahead.append(n)
    return variables, used


def _piece(steps: Steps, outputs: list[int], kept: Sequence[Step]) -> Piece:
    names: dict[int, int] = {}
    new = Steps()

    def name(n: int | None) -> int | None:
        if n is None:
            return None
        if n not in names:
            names[n] = len(new.shapes)
            new.shapes.append(steps.shapes[n])
            new.itemsizes.append(steps.itemsizes[n])
        return names[n]

    read = {n for step in kept for n in step.taken} | {steps.outputs[i] for i in outputs}
    inputs = [i for i, n in enumerate(steps.inputs) if n in read]
    new.inputs = [name(steps.inputs[i]) or 0 for i in inputs]
    for step in kept:
        taken = [name(n) for n in step.taken]
        made = [name(n) for n in step.made]
        new.steps.append(
            Step(
                step.name,
                taken,
                [n for n in made if n is not None],
                step.row,
                step.runs,
                step.known,
            )
        )
    new.outputs = [name(steps.outputs[i]) for i in outputs]
    new.same = [(name(a) or 0, name(b) or 0, front) for a, b, front in steps.same]
    key = (
        tuple(new.shapes),
        tuple(new.itemsizes),
        tuple((s.name, tuple(s.taken), tuple(s.made), s.runs, _written(s)) for s in new.steps),
        tuple(new.inputs),
        tuple(new.outputs),
    )
    return Piece(tuple(inputs), tuple(outputs), new, key)


def _written(step: Step) -> tuple[object, ...]:
    row = step.row
    return tuple(row.links), tuple(row.summed), tuple(row.lookups), row.multiplications
