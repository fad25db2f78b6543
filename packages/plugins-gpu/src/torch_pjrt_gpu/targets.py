"""GPUs that programs can be compiled for without having one: what XLA's compiler wants to know of a card.

The numbers are those of the vendor's data sheets and of the CUDA programming guide's table of compute
capabilities. They decide how XLA tiles and fuses; timings are not taken from them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One kind of NVIDIA card.

    capability   major and minor.
    cores        multiprocessors that are switched on.
    shared_bytes, shared_block_bytes   shared memory of a multiprocessor, and what one block may ask for.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    lanes: int
    threads: int
    shared_bytes: int
    shared_block_bytes: int
    cache_bytes: int
    memory_bytes: int
    bytes_per_s: int
    clock_ghz: float


_GB = 10**9
_GIB = 1 << 30
_KIB = 1 << 10
_MIB = 1 << 20

CARDS = {
    "a100": Card(
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048),
        *(164 * _KIB, 163 * _KIB, 40 * _MIB, 80 * _GIB, 2039 * _GB, 1.41),
    ),
    "l4": Card(
        *("NVIDIA L4", (8, 9), 58, 128, 1536),
        *(100 * _KIB, 99 * _KIB, 48 * _MIB, 24 * _GB, 300 * _GB, 2.04),
    ),
    "h100": Card(
        *("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048),
        *(228 * _KIB, 227 * _KIB, 50 * _MIB, 80 * _GIB, 3352 * _GB, 1.98),
    ),
    "h200": Card(
        *("NVIDIA H200", (9, 0), 132, 128, 2048),
        *(228 * _KIB, 227 * _KIB, 50 * _MIB, 141 * _GB, 4800 * _GB, 1.98),
    ),
    "b200": Card(
        *("NVIDIA B200", (10, 0), 148, 128, 2048),
        *(228 * _KIB, 227 * _KIB, 126 * _MIB, 180 * _GB, 8000 * _GB, 1.97),
    ),
}


def config_of(card: Card) -> str:
    """The card as XLA's `GpuTargetConfigProto`, in text."""
    c = card
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {c.capability[0]} minor: {c.capability[1]} }}
          threads_per_block_limit: 1024 threads_per_warp: 32
          threads_per_core_limit: {c.threads} core_count: {c.cores} fpus_per_core: {c.lanes}
          shared_memory_per_block: {48 * _KIB} shared_memory_per_core: {c.shared_bytes}
          shared_memory_per_block_optin: {c.shared_block_bytes}
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          memory_bandwidth: {c.bytes_per_s} l2_cache_size: {c.cache_bytes}
          clock_rate_ghz: {c.clock_ghz} device_memory_size: {c.memory_bytes}
        }}
        platform_name: "CUDA"
        dnn_version_info {{ major: 9 minor: 12 patch: 0 }}
        device_description_str: "{c.name}"
    """
