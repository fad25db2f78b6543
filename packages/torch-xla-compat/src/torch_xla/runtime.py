"""Devices, processes and their numbers (`torch_xla.runtime`, `xr`).

Without SPMD a process has one device; under `use_spmd()` a run of one process drives all its chips as one
device, and the world has size 1.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import torch_pjrt
from torch_pjrt import extend
from torch_pjrt.errors import UnsupportedError
from torch_pjrt.extend import counters
from torch_xla import chips, process_groups

_spmd: list[bool] = []


def set_device_type(pjrt_device: str) -> None:
    """Choose the device by name, as the variable PJRT_DEVICE does; before the first tensor."""
    os.environ["PJRT_DEVICE"] = {"CUDA": "GPU"}.get(pjrt_device.upper(), pjrt_device)


def device_type() -> str:
    """`"TPU"`, `"CUDA"`, `"CPU"`, ...; starts the device."""
    return chips.hardware()


def using_pjrt() -> bool:
    """True."""
    return True


def is_bf16_supported() -> bool:
    """Whether the device computes in bfloat16."""
    return torch.get_device_module("pjrt").is_bf16_supported()


def use_spmd(auto: bool = False) -> None:
    """From now on this process drives all its chips: `spmd.mark_sharding` spreads tensors over them.

    Raises `UnsupportedError` for `auto`.
    """
    if auto:
        raise UnsupportedError(
            "Sharding is not chosen for whole processes here.",
            saw="use_spmd(auto=True)",
            hint="`torch_pjrt_spmd.auto_shard(model, example_inputs, mesh)` finds and applies a plan",
        )
    _spmd[:] = [True]


def is_spmd() -> bool:
    """Whether `use_spmd` was called, or XLA_USE_SPMD is set."""
    return bool(_spmd) or os.environ.get("XLA_USE_SPMD", "0") not in ("", "0")


def world_size() -> int:
    """How many processes take part; 1 under SPMD."""
    return 1 if is_spmd() else process_groups.world_size()


def global_ordinal() -> int:
    """The number of this process among all; 0 under SPMD."""
    return 0 if is_spmd() else process_groups.rank()


def local_ordinal() -> int:
    """Its number on this host."""
    return 0 if is_spmd() else process_groups.local_rank()


def process_count() -> int:
    """How many processes the run has, under SPMD, too."""
    return process_groups.world_size()


def process_index() -> int:
    """The number of this process, under SPMD, too."""
    return process_groups.rank()


def host_index() -> int:
    """The number of this host, by the processes that each host has."""
    return process_groups.rank() // process_groups.local_world_size()


def local_process_count() -> int:
    """How many processes this host has."""
    return process_groups.local_world_size()


def global_device_count() -> int:
    """Devices of all processes, one for each."""
    return process_groups.world_size()


def local_device_count() -> int:
    """Devices of the processes of this host."""
    return process_groups.local_world_size()


def addressable_device_count() -> int:
    """Devices of this process."""
    return chips.device_count()


def addressable_runtime_device_count() -> int:
    """Chips of this process."""
    return len(extend.client().chips)


def global_runtime_device_count() -> int:
    """Chips of all processes."""
    return len(_all_chips())


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of the chip with a name of `torch_xla.real_devices()`: coords, core_on_chip, name."""
    number = int(device.rsplit(":", 1)[-1])
    return next(_attributes(chip) for chip in _all_chips() if chip.id == number)


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """The same of all chips of the run."""
    return [_attributes(chip) for chip in _all_chips()]


def get_master_ip() -> str:
    """The address of the first process: MASTER_ADDR, or this host."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs in the folder `path`, which is on by default. `UnsupportedError` for
    `readonly`."""
    if readonly:
        raise UnsupportedError(
            "The folder of programs cannot be read only.",
            hint="make it read only by its mode: programs are then read and not written",
        )
    torch_pjrt.config.cache_dir = Path(path)


def get_num_cached_compilation_graph() -> int:
    """How many programs this process has compiled or loaded."""
    return counters.programs_compiled + counters.programs_loaded


def _all_chips() -> list[Any]:
    import jax

    return jax.devices(extend.client().chip.platform)


def _attributes(chip: Any) -> dict[str, Any]:
    known = {"name": f"{chips.hardware()}:{chip.id}", "process_index": chip.process_index}
    for attribute in ("coords", "core_on_chip", "slice_index"):
        if hasattr(chip, attribute):
            known[attribute] = getattr(chip, attribute)
    return known
