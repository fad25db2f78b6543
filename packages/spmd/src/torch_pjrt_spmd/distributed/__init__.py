"""Many processes: the backend `pjrt` of `torch.distributed`, and what holds their run together.

    import torch, torch.distributed as dist
    dist.init_process_group("pjrt")          # under torchrun; or "cpu:gloo,pjrt:pjrt"
    model = DistributedDataParallel(model.to("pjrt"))

initialize    become part of a run that torchrun has started, to spread tensors over all processes' chips
process_index, process_count   who this process is, and how many there are
PeerError     another process is gone, or has not come in time
PeersDiffer   processes are about to do different things
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer
    from torch_pjrt_spmd.distributed.run import initialize, process_count, process_index

__all__ = ["PeerError", "PeersDiffer", "initialize", "process_count", "process_index"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from torch_pjrt_spmd.distributed import errors, run

        return getattr(errors if name.startswith("Peer") else run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
