"""DDP of a process whose device is `pjrt:0`, whatever number the process has on its host.

Accelerate gives DDP `device_ids=[LOCAL_RANK]`. That names the same device, but DDP would then copy each input
from `pjrt:0` to `pjrt:1` on the second process, and not on the first: two processes with different programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from torch_pjrt_ecosystem.replacing import wrap


def install(accelerator: Any) -> None:
    """`accelerator` is `accelerate.accelerator`."""
    wrap(accelerator.Accelerator, "prepare_model", _prepare_model)


def _prepare_model(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    model = original(self, *args, **kwargs)
    ddp = getattr(model, "_orig_mod", model)  # what `torch.compile` has made of it
    if self.device.type == "pjrt" and isinstance(ddp, DistributedDataParallel) and ddp.device_ids:
        ddp.device_ids = [0]
        ddp.output_device = 0
    return model
