"""The time limit of a group, where a program sets it later: PyTorch knows of NCCL's and gloo's alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from torch_pjrt_spmd.distributed.group import group_of_ranks, is_on_device


def install() -> None:
    """Stand before PyTorch's functions that set it, for groups on the device."""
    for module, name in ((distributed_c10d, "_set_pg_timeout"), (dist, "set_timeout")):
        theirs = getattr(module, name, None)  # the second is new in PyTorch
        if theirs is not None:
            setattr(module, name, _setting(theirs))


def _setting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def set_timeout(timeout: timedelta, group: Any = None) -> None:
        own: Any = group or distributed_c10d._get_default_group()
        if not is_on_device(own):
            return theirs(timeout, group)
        group_of_ranks(own).peers.timeout = timeout.total_seconds()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Set timeout is now only supported")
            return theirs(timeout, group)

    return set_timeout
