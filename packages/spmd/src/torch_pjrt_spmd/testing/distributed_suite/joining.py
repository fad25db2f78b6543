"""How a process of a run takes part: the process group that all of its tests have."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist

# Of a collective, as where PyTorch runs them.
_TIMEOUT = timedelta(seconds=60)

# The process group of the run, once this process is in it.
_joined: list[object] = []


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
    _joined[:] = [dist.group.WORLD]
    return True


def is_joined() -> bool:
    """Whether the default group is still the run's: a test may have ended it, or have made another."""
    return dist.is_initialized() and _joined == [dist.group.WORLD]
