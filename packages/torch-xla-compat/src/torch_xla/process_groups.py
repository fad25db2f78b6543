"""The backend `xla` of `torch.distributed`, which is `pjrt`; and the group that collectives use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

import torch_pjrt_spmd.distributed

NAME = "xla"
_groups: dict[tuple[tuple[int, ...], ...], Any] = {}


def register() -> None:
    """Make `init_process_group("xla", init_method="xla://")` known; any number of times."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    from torch.distributed.rendezvous import register_rendezvous_handler

    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["pjrt"])
    register_rendezvous_handler(NAME, _rendezvous)


def world_size() -> int:
    """How many processes the run has; 1 where none was started."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Which of them this one is."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Which of this host's it is."""
    return int(os.environ.get("LOCAL_RANK", rank()))


def local_world_size() -> int:
    """How many this host has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))


def join() -> None:
    """Become part of the run that a launcher has started, if one has: before the first tensor on the device.

    A process group may be made later, by whoever needs one.
    """
    if world_size() > 1 and not (dist.is_available() and dist.is_initialized()):
        torch_pjrt_spmd.distributed.initialize()


def is_alone() -> bool:
    """Whether there is one process, which exchanges nothing. Else the default group is there afterwards."""
    if world_size() == 1:
        return True
    if not dist.is_initialized():
        dist.init_process_group("pjrt")
    return False


def group_of(groups: Sequence[Sequence[int]] | None) -> Any:
    """The process group of those `groups` (ranks) that this process is in; None, the default group, for None.

    All processes call it with the same groups in the same order. Each kind of groups is made once.
    """
    if not groups:
        return None
    key = tuple(tuple(ranks) for ranks in groups)
    if key not in _groups:
        made = [dist.new_group(list(ranks)) for ranks in key]
        mine = [group for ranks, group in zip(key, made, strict=True) if rank() in ranks]
        _groups[key] = mine[0] if mine else dist.GroupMember.NON_GROUP_MEMBER
    return _groups[key]


def start_group() -> None:
    """Make the default group, of one process, too, where there is none."""
    if not dist.is_initialized():
        dist.init_process_group("pjrt", init_method="pjrt://" if world_size() == 1 else None)


def _create(options: Any, backend_options: Any) -> Any:
    return dist.Backend._plugins["PJRT"].creator_fn(options, backend_options)


def _rendezvous(url: str, timeout: Any = None, **ignored: Any) -> Any:
    from torch.distributed.rendezvous import rendezvous

    return rendezvous(url.replace("xla://", "pjrt://", 1), timeout=timeout)
