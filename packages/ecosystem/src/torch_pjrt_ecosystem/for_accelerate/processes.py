"""Several processes: each trains on its `pjrt:0`, and they meet in the backend `pjrt` of `torch.distributed`.

Accelerate goes through a list of devices and their backends. One that it does not know is no process group,
and each process would train a model of its own. `MULTI_GPU` is its name for DDP over processes with a device
each; all that it does for that name alone is also done on `pjrt`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from torch_pjrt_ecosystem.at_hand import device as the_device
from torch_pjrt_ecosystem.at_hand import is_at_hand
from torch_pjrt_ecosystem.joined import check_can_join
from torch_pjrt_ecosystem.replacing import wrap


def install(state: Any) -> None:
    """`state` is `accelerate.state`."""
    several, one = state.DistributedType.MULTI_GPU, state.DistributedType.NO

    def prepare_backend(
        original: Callable[..., Any],
        self: Any,
        cpu: bool = False,
        sagemaker_dp: bool = False,
        backend: str | None = None,
    ) -> Any:
        made, kind = original(self, cpu, sagemaker_dp, backend)
        if kind is not one or cpu or not _is_ours(self.device) or _n_processes() == 1:
            return made, kind
        check_can_join("Accelerate", backend)
        self.device = the_device()
        return backend or "pjrt", several

    wrap(state.PartialState, "_prepare_backend", prepare_backend)


def _is_ours(named: Any) -> bool:
    return is_at_hand() if named is None else named.type == "pjrt"


def _n_processes() -> int:
    joined = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if joined else int(os.environ.get("WORLD_SIZE") or 1)
