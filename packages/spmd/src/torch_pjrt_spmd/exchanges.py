"""The collectives that XLA has put into programs: how many bytes, along which axes, and for which line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from torch_pjrt.extend import Program, each_collective
from torch_pjrt_spmd import asked, groups
from torch_pjrt_spmd.default_mesh import mesh_of
from torch_pjrt_spmd.hlo import parsed
from torch_pjrt_spmd.spread_work import Exchange, Walk, Work

if TYPE_CHECKING:
    import jax

    Shape = tuple[int, ...]

_programs: WeakSet[Program] = WeakSet()
_readings: WeakKeyDictionary[Program, Reading] = WeakKeyDictionary()


@dataclass(frozen=True)
class Collective:
    """Equal collectives of one program.

    program  its number in `torch_pjrt.report()`.
    kind     XLA's name: all-gather, all-reduce, all-to-all, collective-permute, reduce-scatter, ...
    axes     of the mesh, along which chips exchange; empty where they are along none in particular.
    n_bytes  what one of them gives each chip.
    line     of the user's program, where that was noted (`torch_pjrt.source_lines`).
    times    how many of them the program has. runs: how many run, since some are in loops.
    resharding   they move what was computed, neither to add it up nor to or from how a tensor is marked.
    """

    program: int
    kind: str
    axes: tuple[str, ...]
    n_bytes: int
    line: str | None
    times: int
    runs: int = 0
    resharding: bool = False


@dataclass(frozen=True)
class Reading:
    """What the text of a compiled program says."""

    collectives: Sequence[Collective]
    work: Work


def note_program(program: Program) -> None:
    """Have a program that was compiled or loaded known to `collectives`."""
    _programs.add(program)


def noted_programs() -> list[Program]:
    """Those in memory that run on several chips, in the order of their numbers."""
    found = [p for p in list(_programs) if mesh_of_program(p) is not None]
    return sorted(found, key=lambda p: p.compilation.number)


def collectives() -> list[Collective]:
    """What chips exchange in each program that is in memory and runs on several, the most bytes first.

    Of programs compiled after the first `use_mesh` or `mark_sharding`. Asking takes some time for large
    programs the first time: XLA writes each of them out.

        for found in collectives():
            print(found)
    """
    found = [c for program in noted_programs() for c in reading_of(program).collectives]
    return sorted(found, key=lambda c: (-c.n_bytes * c.runs, c.program, c.kind, c.axes))


def mesh_of_program(program: Program) -> jax.sharding.Mesh | None:
    """The mesh that a program runs on; None for one on one chip."""
    return mesh_of_all([*program.shardings, *program.compiled.output_shardings])


def mesh_of_all(shardings: Sequence[Any]) -> jax.sharding.Mesh | None:
    """The first mesh of several chips that one of the shardings speaks of."""
    found = (m for s in shardings if (m := mesh_of(s)) is not None and m.size > 1)
    return next(found, None)


def reading_of(program: Program) -> Reading:
    """What the text of a program on several chips says; read once."""
    found = _readings.get(program)
    if found is None:
        mesh = mesh_of_program(program)
        assert mesh is not None
        number = program.compilation.number
        found = _readings[program] = read(program.compiled, mesh, number, _marked_in(program))
    return found


def read(
    compiled: Any, mesh: jax.sharding.Mesh, number: int = 0, marked: Collection[Shape] = ()
) -> Reading:
    """What the text of a compiled program on this mesh says.

    number   of the program. marked: the shapes on a chip of what is marked in it.
    """
    sizes = dict(mesh.shape)
    text = parsed(compiled.as_text())
    walk = Walk(
        text,
        sizes,
        [_axes_of(sharding) for sharding in compiled.input_shardings[0]],
        lambda rest: groups.axes_of(rest, mesh),
    )
    equal: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for one in walk.exchanges:
        line, resharding = text.line_of(one.instruction), _is_resharding(one, marked)
        equal[one.kind, one.axes, _bytes(one), line, resharding].append(one.runs)
    found = [
        Collective(number, kind, axes, n_bytes, line, len(runs), sum(runs), resharding)
        for (kind, axes, n_bytes, line, resharding), runs in equal.items()
    ]
    return Reading(found, walk.work)


_MOVES = ("all-gather", "all-to-all", "collective-permute", "ragged-all-to-all")


def _is_resharding(one: Exchange, marked: Collection[Shape]) -> bool:
    if one.kind not in _MOVES or one.of_input:
        return False
    if (
        "to-all" in one.kind
    ):  # it takes and gives a chip's elements in as many pieces as there are chips
        n_elements = sum(map(prod, one.made))
        return n_elements not in {prod(shape) for shape in marked}
    return {_without_ones(s) for s in (*one.taken, *one.made)}.isdisjoint(marked)


def _marked_in(program: Program) -> set[Shape]:
    """The shapes on a chip of values that marks in the program speak of, and of its results."""
    compiled = program.compiled
    results = zip(compiled.output_shardings, compiled.out_info, strict=True)
    found = {how.shard_shape(info.shape) for how, info in results}
    found |= set(asked.shapes_on_a_chip(program.recorded))
    return {_without_ones(shape) for shape in found}


def _without_ones(shape: Shape) -> Shape:
    """XLA drops and adds dims of one element as it likes."""
    return tuple(n for n in shape if n != 1)


def _bytes(one: Exchange) -> int:
    i = one.instruction
    return sum(n for _, n, _ in each_collective(f" = {i.made} {i.kind}({i.rest}"))


def _axes_of(sharding: Any) -> frozenset[str]:
    """The axes that an input is spread over."""
    from torch_pjrt_spmd.spec import axes_of

    return frozenset(name for entry in getattr(sharding, "spec", ()) for name in axes_of(entry))
