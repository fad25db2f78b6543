"""How long collectives take: alpha + bytes / beta, by the axes of a mesh.

The factors of bytes are those of `exchange_time`. Here bytes are those of the whole that chips have together
(the larger side of a collective), and each collective has the latency of its slowest axis besides:

    all-gather, reduce-scatter   alpha + (n - 1) / n * bytes / beta
    all-reduce                   alpha + 2 (n - 1) / n * bytes / beta
    all-to-all                   alpha + (n - 1) / n / n * bytes / beta: each chip has an nth, and keeps an
                                 nth of that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from torch_pjrt_spmd import exchange_time
from torch_pjrt_spmd.settings import config

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.chips import Chip

PICO = 10**12


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a mesh: its name, chips, bytes that a chip sends along it in a second, seconds to begin."""

    name: str
    size: int
    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Network:
    """The axes of a mesh, those of one chip left out."""

    axes: tuple[Axis, ...]

    def picoseconds(self, kind: str, n_bytes: float, along: Sequence[int]) -> int:
        """Of a collective along some axes, by their place. n_bytes: what chips have together of it.

        all-gather: what each gets; reduce-scatter: what each begins with; all-reduce: what each has;
        all-to-all: what all of a group have.
        """
        axes = [self.axes[a] for a in along]
        n = prod(axis.size for axis in axes)
        if n == 1 or not n_bytes:
            return 0
        given = {"reduce-scatter": n_bytes / n, "all-to-all": n_bytes / n}.get(kind, n_bytes)
        rate = min(axis.bandwidth for axis in axes)
        latency = max(axis.latency for axis in axes)
        return round(PICO * (latency + exchange_time.FACTORS[kind](n) * given / rate))


def network_of(
    names: Sequence[str], sizes: Sequence[int], chip: Chip, across: Sequence[str] = ()
) -> Network:
    """Of a mesh of such chips. across: axes that go over slices or nodes.

    `config.bandwidth` says otherwise of axes that it names.
    """
    said: Mapping[str, float] = config.bandwidth
    axes = []
    for name, size in zip(names, sizes, strict=True):
        rate, latency = chip.link_bandwidth, chip.link_latency
        if name in across:
            rate, latency = chip.network_bandwidth, chip.network_latency
        axes.append(Axis(name, size, said.get(name, rate), latency))
    return Network(tuple(axes))
