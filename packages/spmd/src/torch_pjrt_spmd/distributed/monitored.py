"""`torch.distributed.monitored_barrier`, which PyTorch has for gloo: that of a group's ranks on the host."""

from __future__ import annotations

from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_pjrt_spmd.distributed.group import group_of_ranks, is_on_device


def install() -> None:
    """Stand before PyTorch's, for groups on the device."""
    theirs = distributed_c10d.monitored_barrier

    @wraps(theirs)
    def monitored_barrier(
        group: Any = dist.group.WORLD, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        own: Any = group or distributed_c10d._get_default_group()
        if distributed_c10d._rank_not_in_group(group) or not is_on_device(own):
            return theirs(group, timeout, wait_all_ranks)
        found = group_of_ranks(own)
        seconds = found.peers.timeout if timeout is None else timeout
        limit = seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
        found.flush()
        return found.host.monitored_barrier(limit, wait_all_ranks)

    distributed_c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier
