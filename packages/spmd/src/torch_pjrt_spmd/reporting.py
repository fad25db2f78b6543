"""What programs on several chips take, compute and exchange: as data, and as tables of `report()`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import Program, Table
from torch_pjrt_spmd import exchange_time
from torch_pjrt_spmd.exchanges import (
    Collective,
    Reading,
    mesh_of_all,
    mesh_of_program,
    noted_programs,
    read,
    reading_of,
)
from torch_pjrt_spmd.roles import OTHER, PARAMETER, STATE, roles_of
from torch_pjrt_spmd.settings import config

if TYPE_CHECKING:
    import jax

_MOST_ROWS = 12  # of a table


@dataclass(frozen=True)
class ProgramReport:
    """A program that runs on several chips. Bytes are of one chip.

    program            its number in `torch_pjrt.report()`.
    mesh               how many chips lie along each axis.
    parameter_bytes    inputs that an optimizer steps, or that are marked leaves. state_bytes: what optimizers
                       keep. other_bytes: the other inputs; batches, buffers, and parameters that are neither.
    temporary_bytes    what it needs between, activations above all. None where the compiler does not say.
    collectives        what chips exchange, those first that give the most bytes.
    replicated         the share of the work that all chips do alike, from 0 to 1. Work is counted in
                       operations: two for each product in matrix products and convolutions, one for each
                       element that another instruction of the program computes.
    replicated_along   for each axis the share that chips along it do alike.
    products           operations of a chip in matrix products and convolutions, those in loops as often as
                       they run; XLA's own analysis (`compile_for(...).flops`) counts a loop once.
    replicated_lines   of your program, those that most of what all do alike comes from, with their share of
                       the work; where they were noted (`torch_pjrt.source_lines`).
    """

    program: int
    mesh: Mapping[str, int]
    parameter_bytes: int
    state_bytes: int
    other_bytes: int
    temporary_bytes: int | None
    collectives: Sequence[Collective]
    replicated: float
    replicated_along: Mapping[str, float]
    replicated_lines: Mapping[str, float] = field(default_factory=dict)
    products: int = 0

    def seconds_along(
        self, bandwidth: Mapping[str, float] | None = None
    ) -> dict[tuple[str, ...], float | None]:
        """How long collectives take in one run, by the axes along which they are; `exchange_time` says how.

        bandwidth   of each axis the bytes that a chip sends along it in a second; `config.bandwidth` unless
                    it is given. None for axes of which it is unknown.
        """
        found: dict[tuple[str, ...], float | None] = {}
        for one in self.collectives:
            took, before = self._seconds(one, bandwidth), found.get(one.axes, 0.0)
            found[one.axes] = None if took is None or before is None else before + took
        return found

    def _seconds(self, one: Collective, bandwidth: Mapping[str, float] | None) -> float | None:
        known = config.bandwidth if bandwidth is None else bandwidth
        of_one = exchange_time.seconds(one.kind, one.n_bytes, one.axes, self.mesh, known)
        return None if of_one is None else one.runs * of_one


def program_reports() -> list[ProgramReport]:
    """One for each program that is in memory and runs on several chips, in the order of compilation.

    Of programs compiled after the first `use_mesh` or `mark_sharding`. XLA writes each of them out, once.

        print(program_reports()[-1].replicated_along)
    """
    return [_of_program(program) for program in noted_programs()]


def tables(programs: Iterable[Any]) -> list[Table]:
    """What `report()`, `explain()` and `compile_for()` print of these programs."""
    found = reports_of(programs)
    exchanges, alike = ([row for r in found for row in of(r)] for of in (_rows, _lines))
    return [
        Table(
            "Bytes on each chip, and work that chips do alike", _SIZES, [_sizes(r) for r in found]
        ),
        Table("What chips exchange", _EXCHANGES, exchanges).first(_MOST_ROWS),
        Table("What all chips do alike", _LINES, alike).first(_MOST_ROWS),
    ]


def reports_of(programs: Iterable[Any]) -> list[ProgramReport]:
    """One for each that runs on several chips, of programs and of what `compile_for` gave."""
    return list(_of_each(programs))


def _of_each(programs: Iterable[Any]) -> Iterator[ProgramReport]:
    for program in programs:
        if not isinstance(program, Program):
            yield from _of_compiled(program.compiled)
        elif mesh_of_program(program) is not None:
            yield _of_program(program)


def _of_program(program: Program) -> ProgramReport:
    bytes_by_role: Counter[str] = Counter()
    inputs = zip(roles_of(program), program.recorded.inputs, program.shardings, strict=True)
    for role, spec, sharding in inputs:
        shape = sharding.shard_shape(tuple(spec.shape))
        n = 1
        for size in shape:
            n *= size
        bytes_by_role[role] += n * spec.dtype.itemsize
    mesh = mesh_of_program(program)
    assert mesh is not None
    number = program.compilation.number
    return _reported(number, mesh, bytes_by_role, program.compiled, reading_of(program))


def _of_compiled(compiled: Any) -> Iterator[ProgramReport]:
    """Of a program that was compiled ahead: what its inputs are is unknown."""
    mesh = mesh_of_all([*compiled.input_shardings[0], *compiled.output_shardings])
    if mesh is not None:
        n_bytes = Counter({OTHER: compiled.memory_analysis().argument_size_in_bytes})
        yield _reported(0, mesh, n_bytes, compiled, read(compiled, mesh))


def _reported(
    number: int,
    mesh: jax.sharding.Mesh,
    bytes_by_role: Mapping[str, int],
    compiled: Any,
    reading: Reading,
) -> ProgramReport:
    work, total = reading.work, max(reading.work.total, 1)
    try:
        between = compiled.memory_analysis().temp_size_in_bytes
    except Exception:  # a plugin may not know, and says so with whatever error it likes
        between = None
    return ProgramReport(
        number,
        dict(mesh.shape),
        bytes_by_role.get(PARAMETER, 0),
        bytes_by_role.get(STATE, 0),
        bytes_by_role.get(OTHER, 0),
        between,
        sorted(reading.collectives, key=lambda c: (-c.n_bytes * c.runs, c.kind, c.axes)),
        work.same / total,
        {name: work.same_along[name] / total for name, n in mesh.shape.items() if n > 1},
        {line: n / total for line, n in work.lines.most_common(_MOST_ROWS)},
        work.products,
    )


_SIZES = (
    "program", "mesh", "parameters", "optimizer state", "other inputs", "between", "all alike",
    "alike along",
)  # fmt: skip
_EXCHANGES = ("program", "kind", "along", "bytes", "runs", "line", "s", "resharding")
_LINES = ("program", "line", "share of the work")


def _sizes(r: ProgramReport) -> tuple[Any, ...]:
    mesh = " x ".join(f"{name} {n}" for name, n in r.mesh.items())
    along = ", ".join(f"{name} {_share(share)}" for name, share in r.replicated_along.items())
    sizes = (r.parameter_bytes, r.state_bytes, r.other_bytes, r.temporary_bytes)
    return (r.program, mesh, *sizes, _share(r.replicated), along)


def _rows(r: ProgramReport) -> Iterator[tuple[Any, ...]]:
    for c in r.collectives:
        took = r._seconds(c, None)
        shown = None if took is None else f"{took:.2e}"
        moves = "nobody asked for it" if c.resharding else None
        yield r.program, c.kind, ", ".join(c.axes), c.n_bytes, c.runs, c.line, shown, moves


def _lines(r: ProgramReport) -> Iterator[tuple[Any, ...]]:
    for line, share in r.replicated_lines.items():
        if share >= 0.001:
            yield r.program, line, _share(share)


def _share(part: float) -> str:
    return f"{part:.1%}"
