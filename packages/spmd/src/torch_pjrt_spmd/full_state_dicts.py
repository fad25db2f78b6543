"""Whole tensors of the host that `set_state_dict` brings to a model in parts: each chip gets its part.

PyTorch moves such tensors to the device one by one, where each would lie on one chip, and keeps them until
the last one is there. From here on what is for a tensor of the device lies as that one does.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend import ArrivingParts, is_pjrt
from torch_pjrt_spmd.marks import how_it_lies, mark_of

STATE_DICT = "torch.distributed.checkpoint.state_dict"
_NAME = "_distribute_state_dict"


def bring_parts(module: Any) -> None:
    """Have the functions of PyTorch's module do so; another version may have none of that name."""
    original = getattr(module, _NAME, None)
    if original is None:
        return

    def distribute(
        full_state_dict: dict[str, Any], local_state_dict: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        spread = {
            name: local_state_dict[name]
            for name, value in full_state_dict.items()
            if _is_spread(local_state_dict.get(name)) and _is_of_host(value)
        }
        rest = {name: value for name, value in full_state_dict.items() if name not in spread}
        original(rest, local_state_dict, *args, **kwargs)
        for name, like in spread.items():
            value = full_state_dict[name]
            local_state_dict[name] = _in_parts(value, like) if value.shape == like.shape else value

    setattr(module, _NAME, distribute)


def _is_spread(tensor: Any) -> bool:
    """Whether it is on the device, to lie on several chips."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not is_pjrt(tensor):
        return False
    how = how_it_lies(tensor) or mark_of(tensor)
    return how is not None and len(how.device_set) > 1


def _is_of_host(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.device.type == "cpu"
        and value.dim() > 0
    )


def _in_parts(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the host on the device, which lies as another one does."""
    arriving = ArrivingParts(like.detach(), new=value.dtype)
    for index in arriving.indices:
        arriving.put(index, value.detach()[index])
    assert arriving.tensor is not None
    return arriving.tensor
