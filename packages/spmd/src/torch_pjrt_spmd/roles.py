"""What the inputs of a program are: parameters, what an optimizer keeps of them, or something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from torch_pjrt.extend import Output, Program, Value, buffer_of, is_pjrt
from torch_pjrt.plugin import Graph
from torch_pjrt_spmd import marks

PARAMETER, STATE, OTHER = "parameter", "optimizer state", "other"

Roles = tuple[str, ...]

_of_programs: WeakKeyDictionary[Program, Roles] = WeakKeyDictionary()
_last: list[tuple[Graph, Roles]] = []  # of the program that is compiled now


def note(graph: Graph, values: Sequence[Value], outputs: Sequence[Output]) -> None:
    """Remember what the inputs of a graph are, while tensors hold the values that it takes and makes."""
    positions = {id(value): i for i, value in enumerate(values)}
    for output in outputs:
        if output.value.origin is not None:
            positions[id(output.value)] = -output.value.origin - 1
    roles = [OTHER] * len(values)
    for tensor, role in _known():
        position = positions.get(id(buffer_of(tensor).value)) if is_pjrt(tensor) else None
        if position is not None:
            roles[position] = role
    _last[:] = [(graph, tuple(roles))]


def note_program(program: Program) -> None:
    """Keep what was noted of the program's graph."""
    for graph, roles in _last:
        if graph is program.recorded:
            _of_programs[program] = roles
    _last.clear()


def roles_of(program: Program) -> Roles:
    """Of each input of the program, in order; parameters are those that an optimizer steps, or marked."""
    return _of_programs.get(program) or (OTHER,) * len(program.recorded.inputs)


def _known() -> Iterator[tuple[torch.Tensor, str]]:
    for optimizer in marks.optimizers():
        for state in list(optimizer.state.values()):
            yield from ((t, STATE) for t in _tensors(state))
        for group in optimizer.param_groups:
            yield from ((p, PARAMETER) for p in group["params"])
    yield from ((leaf, PARAMETER) for leaf in marks.leaves())


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    return (t for t in state.values() if isinstance(t, torch.Tensor))
