"""The collectives that XLA has put into programs: how many bytes, along which axes, and for which line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from torch_pjrt.extend import Program, add_program_hooks, each_collective
from torch_pjrt_spmd.partitioner import mesh_of

if TYPE_CHECKING:
    import jax

_LISTED = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
# As of JAX 0.10: axes of a mesh of XLA's own, some perhaps in part, and how the chips lie on it.
_OF_MESH = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<of>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<ids>[\d,]+))\))?"
    r" \{(?P<along>[^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
_ALONG = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_LINE = re.compile(r'op_name="[^"]*\(([^()":]+:\d+)\)')

_programs: WeakSet[Program] = WeakSet()


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one program.

    program  its number in `torch_pjrt.report()`.
    kind     XLA's name: all-gather, all-reduce, all-to-all, collective-permute, reduce-scatter, ...
    axes     of the mesh, along which chips exchange; empty where they are along none in particular.
    n_bytes  what one of them gives each chip.
    line     of the user's program, where that was noted (`torch_pjrt.source_lines`).
    times    how many of them the program has.
    """

    program: int
    kind: str
    axes: tuple[str, ...]
    n_bytes: int
    line: str | None
    times: int


def note_programs() -> None:
    """Have programs that are compiled or loaded from now on known to `collectives`."""
    add_program_hooks(after_compile=_programs.add)


def collectives() -> list[Collective]:
    """What chips exchange in each program that is in memory and runs on several, the most bytes first.

    Of programs compiled after the first `use_mesh` or `mark_sharding`. A collective in a loop is counted
    once. Asking takes a while for large programs: XLA writes each of them out.

        for found in collectives():
            print(found)
    """
    found = [c for program in list(_programs) for c in _of_program(program)]
    return sorted(found, key=lambda c: (-c.n_bytes * c.times, c.program, c.kind, c.axes))


def _of_program(program: Program) -> list[Collective]:
    mesh = next((m for s in program.shardings if (m := mesh_of(s)) is not None), None)
    if mesh is None:
        return []
    counts = Counter(_read(program.compiled.as_text(), mesh))
    number = program.compilation.number
    return [Collective(number, *of_one, times) for of_one, times in counts.items()]


def _read(
    text: str, mesh: jax.sharding.Mesh
) -> Iterator[tuple[str, tuple[str, ...], int, str | None]]:
    for kind, n_bytes, rest in each_collective(text):
        line = _LINE.search(rest)
        yield kind, _axes(rest, mesh), n_bytes, line and line[1]


def _axes(rest: str, mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """The axes along which the positions differ that are in one group."""
    shape = tuple(mesh.shape.values())
    differ: set[str] = set()
    for group in _groups(rest, prod(shape)):
        for name, along in zip(mesh.axis_names, np.unravel_index(group, shape), strict=True):
            if len(set(along.tolist())) > 1:
                differ.add(name)
    return tuple(name for name in mesh.axis_names if name in differ)


def _groups(rest: str, n_chips: int) -> list[Any]:
    """The groups of positions that exchange with each other."""
    if (of_mesh := _OF_MESH.search(rest)) is not None:
        return _groups_of_mesh(of_mesh)
    if (iota := _IOTA.search(rest)) is not None:
        shape, of, order = (_numbers(part or "") for part in iota.groups())
        positions = np.arange(prod(of)).reshape(of)
        return list((positions.transpose(order) if order else positions).reshape(shape))
    if (listed := _LISTED.search(rest)) is not None:
        found = [_numbers(group) for group in re.findall(r"\{([\d, ]*)\}", listed[1])]
        return [np.array(group) for group in found if group]
    return [np.arange(n_chips)]  # all of them


def _groups_of_mesh(match: re.Match[str]) -> list[Any]:
    sizes = {name: int(n) for name, n in _AXIS.findall(match["axes"])}
    if match["ids"]:
        positions = np.array(_numbers(match["ids"]))
    else:
        of = _numbers(match["of"] or "") or tuple(sizes.values())
        order = _numbers(match["order"] or "") or tuple(range(len(of)))
        positions = np.arange(prod(of)).reshape(of).transpose(order)
    # Each axis in three parts, of which the second is gone along: all of it, or none.
    parts = {name: (1, 1, n) for name, n in sizes.items()}
    for name, before, within in _ALONG.findall(match["along"]):
        n = int(within or sizes[name])
        parts[name] = (int(before or 1), n, sizes[name] // (int(before or 1) * n))
    split = positions.reshape([n for part in parts.values() for n in part])
    along = list(range(1, split.ndim, 3))
    moved = np.moveaxis(split, along, range(-len(along), 0))
    return list(moved.reshape(-1, prod(part[1] for part in parts.values())))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n.strip())
