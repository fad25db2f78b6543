"""Many processes: the backend `pjrt` of `torch.distributed`, and what holds their run together.

    import torch, torch.distributed as dist
    dist.init_process_group("pjrt")          # under torchrun; or "cpu:gloo,pjrt:pjrt"
    model = DistributedDataParallel(model.to("pjrt"))

initialize    become part of a run that torchrun has started, to spread tensors over all processes' chips
process_index, process_count   who this process is, and how many there are
check_divergence, DivergenceCheck   whether parameters, or a loss, are the same on all ranks; Diverged
report_failure    tell the others of an error that a launcher of your own has caught
stragglers    which ranks are slow; each a Straggler
PeerError     another process is gone, or has not come in time
PeersDiffer   processes are about to do different things
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.divergence import Diverged, DivergenceCheck, check_divergence
    from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer
    from torch_pjrt_spmd.distributed.health import report_failure
    from torch_pjrt_spmd.distributed.run import initialize, process_count, process_index
    from torch_pjrt_spmd.distributed.stragglers import Straggler, stragglers

_LAZY = {
    "Diverged": "divergence",
    "DivergenceCheck": "divergence",
    "PeerError": "errors",
    "PeersDiffer": "errors",
    "Straggler": "stragglers",
    "check_divergence": "divergence",
    "initialize": "run",
    "process_count": "run",
    "process_index": "run",
    "report_failure": "health",
    "stragglers": "stragglers",
}
__all__ = [
    "Diverged",
    "DivergenceCheck",
    "PeerError",
    "PeersDiffer",
    "Straggler",
    "check_divergence",
    "initialize",
    "process_count",
    "process_index",
    "report_failure",
    "stragglers",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from torch_pjrt.extend import lazy_attribute

        found = lazy_attribute(f"{__name__}.{_LAZY[name]}", name)
        globals()[name] = found  # a function has its module's name, which the import has put there
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
