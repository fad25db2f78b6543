"""The processes that save together: who there is, and what each of them says to all."""

from __future__ import annotations

import itertools
import pickle
from functools import cache
from typing import Any

_rounds = itertools.count()


def rank_and_size() -> tuple[int, int]:
    """The number of this process, from 0, and how many there are."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    from torch_pjrt_spmd.distributed import process_count, process_index

    return process_index(), process_count()


def all_said(word: Any) -> list[Any]:
    """What each process said, in the order of ranks. All must call it."""
    import torch.distributed as dist

    rank, size = rank_and_size()
    if size == 1:
        return [word]
    if dist.is_available() and dist.is_initialized():
        said: list[Any] = [None] * size
        dist.all_gather_object(said, word)
        return said
    keys, number = store("said"), next(_rounds)
    keys.set(f"{number}/{rank}", pickle.dumps(word))
    return [pickle.loads(keys.get(f"{number}/{other}")) for other in range(size)]


@cache
def store(name: str) -> Any:
    """Keys that all processes of the run see, which no other name has."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    if dist.is_available() and dist.is_initialized():
        of_run = dist.distributed_c10d._get_default_store()
    else:  # a mesh over several processes, which has no process group
        from torch_pjrt_spmd.distributed.joining import store_of_run

        of_run = store_of_run()
    return PrefixStore(f"torch_pjrt/checkpoints/{name}", of_run)
