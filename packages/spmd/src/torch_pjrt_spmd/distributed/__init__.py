"""Many processes: the backend `pjrt` of `torch.distributed`, and what holds their run together.

    import torch, torch.distributed as dist
    dist.init_process_group("pjrt")          # under torchrun; or "cpu:gloo,pjrt:pjrt"
    model = DistributedDataParallel(model.to("pjrt"))

PeerError     another process is gone, or has not come in time
PeersDiffer   processes are about to do different things
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer

__all__ = ["PeerError", "PeersDiffer"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from torch_pjrt_spmd.distributed import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
