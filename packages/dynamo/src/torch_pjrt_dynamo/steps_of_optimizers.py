"""`optimizer.step()` in a compiled function is recorded as it is without a compiler.

A graph ends there in any case: at core's hook before the step. What Dynamo would go on to trace has the
numbers of the optimizer as constants: a schedule has it trace the step anew for each learning rate, until it
gives up. It takes as long for a step as for the model before it, too. Recorded, numbers are inputs, and the
step is still part of the one program. An optimizer whose `lr` is a tensor, as PyTorch advises for compiled
ones, is traced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from torch_pjrt.extend import is_pjrt, keep_dynamo_out_of_calls


def record_steps() -> None:
    """From now on, Dynamo leaves such steps to the tape."""
    # PyTorch puts the same function around the method `step` of each class.
    around: Any = Optimizer.profile_hook_step(_take_no_step)
    keep_dynamo_out_of_calls(around, _is_recorded)


def _take_no_step(optimizer: Optimizer) -> None:
    """A step of no optimizer."""


def _is_recorded(names: Mapping[str, Any]) -> bool:
    """Whether the optimizer has all of its parameters on the device, and was not made to be compiled."""
    match names.get("args"):
        case [Optimizer(param_groups=groups), *_]:
            return all(is_pjrt(p) for group in groups for p in group["params"]) and not any(
                isinstance(group.get("lr"), torch.Tensor) for group in groups
            )
    return False
