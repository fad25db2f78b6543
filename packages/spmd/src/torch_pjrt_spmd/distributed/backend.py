"""The backend `pjrt` of `torch.distributed`: what `init_process_group` and `new_group` make.

PyTorch takes no backend that is written in Python. So the object is PyTorch's own fake one, which knows rank
and size, and what it would do is done by kernels of the `c10d::*` operators for our tensors (`kernels.py`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import DebugLevel, FakeProcessGroup, PrefixStore, get_debug_level
from torch.distributed.constants import default_pg_timeout

from torch_pjrt_spmd.distributed import group, health, kernels
from torch_pjrt_spmd.distributed.grids import line_of, tell_of
from torch_pjrt_spmd.distributed.joining import join, own_part
from torch_pjrt_spmd.distributed.peers import Peers
from torch_pjrt_spmd.distributed.settings import peer_timeout

# A limit that gloo itself keeps: ours is looked at where something is waited for.
_LONG = timedelta(days=7)


def create(options: Any, backend_options: Any) -> Any:
    """The backend of one process group, of `c10d::DistributedBackendOptions`. All its ranks call it.

    The first group of a process is that of all ranks: with it the device starts, as a part of the run.
    """
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group) or list(range(size))
    name = options.group_id
    given = options.timeout if options.timeout != default_pg_timeout else None
    timeout = peer_timeout(given)
    is_first = not dist.is_initialized()
    if is_first:
        join(options.store, rank, size)
        health.start(options.store, rank, size, timeout)
    kernels.register()
    own_store = PrefixStore(str(group.generation(name)), own_part(options.store))
    peers = Peers(own_store, ranks, rank, timeout)
    line = line_of(ranks)
    if rank == 0:
        tell_of(line, ranks)
    if not is_first:
        peers.agree(f"make group {name} of ranks {ranks}")  # gloo would wait for a rank for ever
    host = dist.ProcessGroupGloo(PrefixStore("host", own_store), rank, size, timeout=_LONG)
    group.add(group.Group(name, peers, host, line))
    if get_debug_level() == DebugLevel.DETAIL:
        # PyTorch wraps it, and asks for sequence numbers, which the fake one has not.
        return host
    make: Any = FakeProcessGroup._create_internal  # PyTorch's stub leaves its last argument out
    return make(rank, size, backend_options)
