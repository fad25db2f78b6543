"""`torch_xla.core.xla_model` (`xm`): devices, steps, collectives, checkpoints, by the names scripts call.

Collectives are those of `torch.distributed` on the backend `pjrt`: parts of the program, like any
operator. In a
run of one process they return what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.extend import is_pjrt
from torch_xla import chips, runtime
from torch_xla.absent import absent
from torch_xla.core.collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    all_gather,
    all_gather_bucketized,
    all_reduce,
    all_reduce_bucketized_gradients,
    all_to_all,
    broadcast_master_param,
    collective_broadcast,
    collective_permute,
    recv,
    reduce_scatter,
    reduce_scatter_bucketized,
    send,
)
from torch_xla.core.optimizers import (
    _fetch_gradients,
    optimizer_step,
    reduce_gradients,
)
from torch_xla.core.random_state import fork_rng, get_rng_state, set_rng_state
from torch_xla.core.saving import (
    _maybe_convert_to_cpu,
    do_on_ordinals,
    mesh_reduce,
    rendezvous,
    save,
    send_cpu_data_to_device,
    xla_rendezvous,
)
from torch_xla.core.stablehlo_text import get_stablehlo
from torch_xla.core.tracking import RateTracker
from torch_xla.steps import add_step_closure, sync

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "RateTracker",
    "_fetch_gradients",
    "_maybe_convert_to_cpu",
    "add_step_closure",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_stablehlo",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
    "optimizer_step",
    "parse_xla_device",
    "recv",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send",
    "send_cpu_data_to_device",
    "set_replication",
    "set_rng_state",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
    "xla_device_kind",
    "xla_real_devices",
    "xla_rendezvous",
    "xla_replication_devices",
    "xrt_world_size",
]

__getattr__ = absent(
    __name__,
    {
        "CoalescingBuckets": "collectives of one step are one program: nothing is to be coalesced",
        "ToXlaTensorArena": "`torch.utils._pytree.tree_map` with `tensor.to('pjrt')` does it",
        "get_stablehlo_bytecode": "`get_stablehlo` gives text; `torch_pjrt_quant.export` gives bytecode",
        "check_view_sharing": "views are exact here: nothing is to be checked",
    },
)


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The device of this process, `pjrt:0`."""
    return chips.device()


def get_xla_supported_devices(
    devkind: str | int | None = None, max_devices: int | None = None
) -> list[str]:
    """The names of this process's devices, `max_devices` at most: in newer scripts the first argument."""
    most = devkind if isinstance(devkind, int) else max_devices
    return [str(device) for device in chips.devices()][:most]


def xla_real_devices(devices: Sequence[Any] | None = None) -> list[str]:
    """The chips behind the devices, `["TPU:0"]`."""
    return chips.real_devices()[: len(devices) if devices else None]


def xla_device_hw(device: Any) -> str:
    """`"TPU"`, `"CUDA"`, `"CPU"`; `"CPU"` for a device that is none of ours."""
    return chips.hardware() if _is_own(device) else "CPU"


def xla_device_kind(device: Any = None) -> str:
    """The chip's name as its plugin gives it, `"TPU v5 lite"`."""
    return chips.kind()


def xla_replication_devices(local_devices: Sequence[Any] | None = None) -> list[str]:
    """The chips of all processes: nothing has to be replicated."""
    return [f"{chips.hardware()}:{n}" for n in range(runtime.global_runtime_device_count())]


def set_replication(device: Any, devices: Any) -> None:
    """Nothing: a process has one device."""


def parse_xla_device(device: Any) -> tuple[str, int] | None:
    """`("TPU", 0)`; None for a device that is none of ours."""
    if not _is_own(device):
        return None
    return chips.hardware(), torch.device(device).index or 0


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether it is on the device."""
    return is_pjrt(tensor)


def get_ordinal(defval: int = 0) -> int:
    """The number of this process among all: `runtime.global_ordinal`."""
    return runtime.global_ordinal()


def get_local_ordinal(defval: int = 0) -> int:
    """Its number on this host: `runtime.local_ordinal`."""
    return runtime.local_ordinal()


def xrt_world_size(defval: int = 1) -> int:
    """How many processes take part: `runtime.world_size`."""
    return runtime.world_size()


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is the first process, of its host if `local`."""
    return (runtime.local_ordinal() if local else runtime.global_ordinal()) == 0


def master_print(*args: Any, fd: Any = None, local: bool = False, flush: bool = False) -> None:
    """Print in the first process only."""
    if is_master_ordinal(local):
        print(*args, file=fd, flush=flush)


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """`torch_xla.sync()`."""
    sync(wait, reset_scope)


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Wait until the device has finished what was launched."""
    torch.accelerator.synchronize()


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Run what is pending, `tensors` with it, and wait for it."""
    sync(wait=True)


def get_memory_info(device: Any = None) -> dict[str, int]:
    """Bytes of the device: `bytes_used`, `bytes_limit`, `peak_bytes_used`."""
    module = torch.get_device_module("pjrt")
    _, total = module.mem_get_info()
    return {
        "bytes_used": module.memory_allocated(),
        "bytes_limit": total,
        "peak_bytes_used": module.max_memory_allocated(),
    }


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """XLA moves no operator across: what uses `tensors` from now on waits for all of them. In place."""
    from jax import lax

    from torch_pjrt import jax_function

    with torch.no_grad():
        held = jax_function(_barrier(lax))(*tensors)
        for tensor, one in zip(tensors, held, strict=True):
            tensor.copy_(one)


def _barrier(lax: Any) -> Callable[..., Any]:
    def barrier(*arrays: Any) -> Any:
        return lax.optimization_barrier(arrays)

    return barrier


def _is_own(device: Any) -> bool:
    return torch.device(device).type in ("pjrt", "xla")
