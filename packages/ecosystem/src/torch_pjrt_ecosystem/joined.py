"""Whether the processes of a run can meet: a library that trains each alone must not be let go on."""

from __future__ import annotations

import os

import torch.distributed as dist

from torch_pjrt.errors import UnsupportedError


def check_can_join(library: str, backend: str | None) -> None:
    """Raise `UnsupportedError` unless `backend` (None: ours) can join processes that torchrun has started.

    A backend of several devices names ours for `pjrt`, as "cpu:gloo,pjrt:pjrt" does.
    """
    alone = f"{library} would train a model of its own in each process"
    n = os.environ.get("WORLD_SIZE")
    if not hasattr(dist.Backend, "PJRT"):
        raise UnsupportedError(
            f"{alone}: the backend `pjrt` of `torch.distributed` is not there.",
            saw=f"WORLD_SIZE={n}",
            expected="torch-pjrt-spmd, which provides it",
            hint="`pip install torch-pjrt-spmd`, or start one process",
        )
    if backend is not None and "pjrt" not in backend.replace(":", ",").split(","):
        raise UnsupportedError(
            f"{alone}: its backend has no collectives of tensors on `pjrt`.",
            saw=f"backend={backend!r}",
            expected='"pjrt", or "cpu:gloo,pjrt:pjrt"',
            hint="leave out the backend",
        )
    if not os.environ.get("LOCAL_RANK", "").isdigit():
        raise UnsupportedError(
            f"{alone}: it finds no number of this process on its host.",
            saw=f"WORLD_SIZE={n}, and no LOCAL_RANK",
            expected="RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as torchrun sets them",
            hint="start with torchrun, `accelerate launch` or `torch_pjrt_spmd.launch` (docs/launching.md)",
        )
