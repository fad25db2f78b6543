"""Figures of chips: one table, and how to have one's own.

The figures are those of public data sheets, dense, without sparsity:

    TPU v4 to v6e   https://cloud.google.com/tpu/docs/v4, .../v5e, .../v5p, .../v6e; bandwidths of links,
                    which go both ways round a ring, and of the data-center network per chip:
                    https://jax-ml.github.io/scaling-book/tpus/
                    vector memory: jax.experimental.pallas.tpu.get_tpu_info
    H100, H200      https://www.nvidia.com/en-us/data-center/h100/, .../h200/ (SXM)
    B200            https://www.nvidia.com/en-us/data-center/dgx-b200/, an eighth of its eight

Latencies are of one collective over an axis. Data sheets do not have them; these are orders of magnitude
(links of TPUs: about 1 us a hop in the scaling book; NCCL over NVLink: about 10 us). What a product reaches
of the peak differs by shape: `efficiency` is one factor for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch_pjrt.errors import SettingError

GIB, GB = 2**30, 1e9


@dataclass(frozen=True, slots=True)
class Chip:
    """What a chip does, in bytes, seconds and operations (a multiplication and an addition are two).

    flops     of products in a second, by the width of an element in bits (16: bfloat16, 32: float32, 8).
    memory_bytes, memory_bandwidth    of its own memory.
    link_bandwidth, link_latency      along an axis within a slice or node (ICI, NVLink).
    network_bandwidth, network_latency   along an axis over slices or nodes (DCN), of one chip's share.
    efficiency    the share of `flops` that large products reach.
    vector_memory_bytes    of a TPU's core, where XLA keeps values that it reads again soon.

        mine = Chip("mine", {16: 4e14, 32: 2e14}, 64 * 2**30, 2e12, 1e11, 2e-6, 1e10, 3e-5)
    """

    name: str
    flops: Mapping[int, float]
    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    link_latency: float = 1e-6
    network_bandwidth: float = 6.25e9
    network_latency: float = 2e-5
    efficiency: float = field(default=0.6)
    vector_memory_bytes: int = 0

    def flops_of(self, bits: int) -> float:
        """In a second, of products of elements of so many bits."""
        known = [b for b in sorted(self.flops) if b >= min(bits, 32)]
        return self.efficiency * self.flops[known[0] if known else max(self.flops)]


def _row(
    name: str, tflops: float, tflops_32: float, gib: float, memory: float, link: float, latency: float,
    network: float, vector: int = 0,
) -> Chip:  # fmt: skip
    return Chip(
        name,
        {16: tflops * 1e12, 32: tflops_32 * 1e12},
        int(gib * GIB),
        memory * GB,
        link * GB,
        latency,
        network * GB,
        vector_memory_bytes=vector << 20,
    )


# TPUs multiply float32 in passes of bfloat16 (three to six of them); GPUs' figure for float32 is TF32's.
#   name          TFLOP/s of 16 and of 32 bits   GiB   GB/s: memory, links (both ways), latency, network,
#                 and MiB of vector memory
CHIPS: Mapping[str, Chip] = {
    chip.name: chip
    for chip in (
        _row("v4",      275,  45.8,  32,  1200,   90, 1e-6, 6.25,  16),
        _row("v5e",     197,  32.8,  16,   819,   90, 1e-6, 3.125, 128),
        _row("v5p",     459,  76.5,  95,  2765,  180, 1e-6, 6.25,  64),
        _row("v6e",     918, 153.0,  32,  1640,  180, 1e-6, 12.5,  128),
        _row("h100",    989, 494.5,  74.5, 3350, 450, 1e-5, 50.0),
        _row("h200",    989, 494.5, 131.3, 4800, 450, 1e-5, 50.0),
        _row("b200",   2250, 1125., 167.6, 8000, 900, 1e-5, 50.0),
        # A part of one host's CPU: no data sheet; so that plans for virtual chips can be made at all.
        _row("cpu",    0.05,  0.05,   8,     10,   5, 5e-5, 1.0),
    )
}  # fmt: skip


def chip_named(name: str | Chip) -> Chip:
    """The chip of a name, of a target like `v5e:4x4`, or itself. `SettingError` for a name without
    figures."""
    if isinstance(name, Chip):
        return name
    short = name.partition(":")[0].lower()
    if short in CHIPS:
        return replace(CHIPS[short])
    raise SettingError(
        f"There are no figures of a chip `{name}`.",
        expected=", ".join(CHIPS),
        hint="pass a torch_pjrt_spmd.autoshard.chips.Chip with your own",
    )
