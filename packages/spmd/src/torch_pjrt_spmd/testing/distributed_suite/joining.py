"""How a process of a run takes part: the process group that all of its tests have."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

# Of a collective, as where PyTorch runs them.
_TIMEOUT = timedelta(seconds=60)


def rank() -> int:
    """This process's number."""
    return int(os.environ["RANK"])


def store_file() -> str:
    """The file by which the processes find each other."""
    return os.environ["INIT_METHOD"].removeprefix("file://")


def join(backend: str) -> bool:
    """Be a process of the run, if it is not yet; says whether it was not."""
    if dist.is_initialized():
        return False
    dist.init_process_group(
        backend,
        init_method=os.environ["INIT_METHOD"],
        rank=rank(),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=_TIMEOUT,
    )
    return True
