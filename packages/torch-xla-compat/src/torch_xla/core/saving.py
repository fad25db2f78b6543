"""Checkpoints from the first process, data to the device, and what processes tell each other on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from torch_pjrt.extend import is_pjrt
from torch_xla import device_strings, process_groups, runtime


def save(
    data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False
) -> None:
    """`torch.save` of `data` with its tensors on the CPU.

    master_only    only the first process writes, of each host, or of all if `global_master`. All processes
                   must
                   call it: they wait until it has been written.
    """
    first = runtime.global_ordinal() if global_master else runtime.local_ordinal()
    writes = not master_only or first == 0
    cpu = _maybe_convert_to_cpu(data, convert=writes)
    if writes:
        torch.save(cpu, file_or_path)
    rendezvous("torch_xla.core.xla_model.save")


def _maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """`data` with its tensors on the CPU; as it is unless `convert`. Libraries import this private name."""
    return (
        tree_map_only(torch.Tensor, lambda t: t.cpu() if is_pjrt(t) else t, data)
        if convert
        else data
    )


def send_cpu_data_to_device(datas: Any, device: Any, input_sharding: Any = None) -> Any:
    """`datas`, any nest of tensors, on the device; `input_sharding`, a `spmd.ShardingSpec` or a dict of
    them by
    key, says how each tensor is spread."""

    def place(spec: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def to(tensor: torch.Tensor) -> torch.Tensor:
            where = device_strings.own(device)
            if spec is not None and spec.can_apply(tensor):
                return spec.placed(tensor, where)
            return tensor.to(where)

        return to

    if isinstance(input_sharding, dict):
        return [
            {
                key: tree_map_only(torch.Tensor, place(input_sharding.get(key)), value)
                for key, value in data.items()
            }
            for data in datas
        ]
    return tree_map_only(torch.Tensor, place(input_sharding), datas)


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait for all processes; their payloads, by rank. `replicas` must be empty or all ranks."""
    return _gathered(payload)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """The same, without a name of the place that must be unique."""
    return _gathered(payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the list of all processes' `data`, which is pickled and passed on the host."""
    return reduce_fn(_gathered(_maybe_convert_to_cpu(data)))


def do_on_ordinals(
    target: Callable[..., None], data: Any = (), ordinals: Sequence[int] = (0,)
) -> None:
    """Call `target(*data)`, with tensors on the CPU, in the processes `ordinals`; the others wait."""
    mine = runtime.global_ordinal() in ordinals
    cpu = _maybe_convert_to_cpu(data, convert=mine)
    if mine:
        target(*cpu)
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")


def _gathered(data: Any) -> list[Any]:
    if process_groups.is_alone():
        return [data]
    everybodys: list[Any] = [None] * process_groups.world_size()
    dist.all_gather_object(everybodys, data)
    return everybodys
