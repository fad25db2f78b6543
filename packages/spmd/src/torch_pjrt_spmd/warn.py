"""Warnings of what costs much and nobody asked for, when a program is compiled; each once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import prod
from typing import Any

from torch_pjrt.extend import Program
from torch_pjrt_spmd.exchanges import mesh_of_program, reading_of
from torch_pjrt_spmd.roles import roles_of
from torch_pjrt_spmd.settings import config


class ShardingWarning(UserWarning):
    """A program keeps a large tensor whole on each chip, or moves one about, though nobody asked for it."""


_said: set[tuple[Any, ...]] = set()


def look_at(program: Program) -> None:
    """Warn of what is large in it, by the settings of now. A function for after compilations."""
    if mesh_of_program(program) is None:
        return
    for key, message in (*_replicated(program), *_resharded(program)):
        if key not in _said:
            _said.add(key)
            warnings.warn(message, ShardingWarning, stacklevel=2)


def _replicated(program: Program) -> Iterator[tuple[tuple[Any, ...], str]]:
    limit = config.warn_of_replicated_bytes
    if limit is None:
        return
    whole, spread = [], 0
    inputs = zip(program.recorded.inputs, roles_of(program), program.shardings, strict=True)
    for spec, role, sharding in inputs:
        n_bytes = prod(spec.shape) * spec.dtype.itemsize
        if not sharding.is_fully_replicated:
            spread += n_bytes
        else:
            whole.append((n_bytes, spec, role))
    if spread <= sum(n for n, *_ in whole):
        return
    for n_bytes, spec, role in whole:
        if n_bytes >= limit:
            shape = list(spec.shape)
            yield (
                ("replicated", role, *shape),
                f"An input ({role}) of {shape}, {n_bytes:,} bytes, is whole on each chip, while most of what "
                f"program {program.compilation.number} takes is spread. mark_sharding spreads it; "
                "torch_pjrt_spmd.config.warn_of_replicated_bytes is the limit.",
            )


def _resharded(program: Program) -> Iterator[tuple[tuple[Any, ...], str]]:
    limit = config.warn_of_resharded_bytes
    if limit is None:
        return
    for one in reading_of(program).collectives:
        if one.resharding and one.n_bytes >= limit:
            where = one.line or "a line that was not noted (torch_pjrt.source_lines notes them)"
            yield (
                ("resharded", one.kind, one.axes, one.line or one.n_bytes),
                f"XLA moves what was computed, which no mark asks for: {one.runs} {one.kind} of "
                f"{one.n_bytes:,} bytes along {', '.join(one.axes) or 'no one axis'} in program "
                f"{one.program}, for {where}. mark_sharding of what it is computed from, or of the result, "
                "may avoid it.",
            )
