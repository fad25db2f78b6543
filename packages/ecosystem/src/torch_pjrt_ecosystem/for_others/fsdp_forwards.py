"""FSDP2 overlooks a forward without gradients when it plans what backward gathers next.

`fully_shard` notes the order in which groups of parameters were used in forward. Backward goes back along it,
and gathers the group before the one at hand; at its end the order is forgotten. A validation has no backward.
So behind it the first group of the next step has one before it, the last of the validation, which is gathered
once more: another program than that of all other steps, though the values are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap


def install(param_group: ModuleType) -> None:
    """`param_group` is `torch.distributed.fsdp._fully_shard._fsdp_param_group`."""
    wrap(param_group.FSDPParamGroup, "_record_post_forward", _note)


def _note(original: Callable[[Any], None], self: Any) -> None:
    if self.device.type != "pjrt" or torch.is_grad_enabled():
        original(self)
