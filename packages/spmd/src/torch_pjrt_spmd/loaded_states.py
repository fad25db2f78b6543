"""`optimizer.load_state_dict`: what comes from the host goes to each chip in its part, as the parameter lies.

PyTorch moves each tensor of the state to the parameter's device as it would any, which is the whole to one
chip.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from torch_pjrt.extend import is_pjrt, upload, wrap_sized
from torch_pjrt_spmd import marks


def install() -> None:
    """Replace what PyTorch does to each tensor of a state; does nothing the second time."""
    optimizer: Any = torch.optim.Optimizer
    original = getattr(optimizer, "_process_value_according_to_param_policy", None)
    if original is None or getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def process(param: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        how = marks.state_of(param) if is_pjrt(param) and value.device.type == "cpu" else None
        if how is None or value.shape != param.shape or not value.dim():
            return original(param, value, *args, **kwargs)
        dtype = param.dtype if param.is_floating_point() else value.dtype
        uploaded = upload(value, dtype=dtype, sharding=how)
        return wrap_sized(uploaded, uploaded.spec)

    process.knows_pjrt = True  # type: ignore[attr-defined]
    optimizer._process_value_according_to_param_policy = staticmethod(process)
