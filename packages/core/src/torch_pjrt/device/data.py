"""`parameter.data = tensor` where the two are on different devices, as sharding a module has it.

PyTorch knows the device types between which a tensor may change its memory in place, and no Python backend is
among them. So the tensor object gets the insides of another one, as `torch.utils.swap_tensors` does it.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.device import moving_parameters
from torch_pjrt.errors import UnsupportedError


def install() -> None:
    """Replace how `data` is set; does nothing the second time."""
    tensors: Any = torch.Tensor
    if "data" in vars(tensors):
        return
    original = tensors.data  # a descriptor of C

    def set_data(self: torch.Tensor, data: torch.Tensor) -> None:
        if isinstance(data, torch.Tensor) and _is_move(self.device.type, data.device.type):
            _swap(self, data)
        else:
            original.__set__(self, data)

    tensors.data = property(original.__get__, set_data)
    moving_parameters.install()


def _is_move(from_device: str, to_device: str) -> bool:
    return from_device != to_device and "pjrt" in (from_device, to_device)


def _swap(tensor: Any, data: torch.Tensor) -> None:
    where = f"`tensor.data = other` from {tensor.device} to {data.device}"
    if moving_parameters.moves(tensor):
        moving_parameters.swap(tensor, data)
        return
    if tensor.grad is not None:
        raise UnsupportedError(
            f"{where}: the gradient would be left on the other device.",
            hint="set `.grad = None` before",
        )
    if not tensor.is_leaf:
        raise UnsupportedError(f"{where}: it is no leaf of autograd.", hint="use `tensor.to()`")
    if tensor.requires_grad:
        _leave_graphs(tensor, where)
    torch._C._swap_tensor_impl(tensor, data.detach().requires_grad_(tensor.requires_grad))  # type: ignore[attr-defined]


def _leave_graphs(tensor: torch.Tensor, where: str) -> None:
    """Let a graph that holds the tensor, as `tensor.to()` makes one, raise if it is gone back through."""
    if tensor._use_count() > 1:  # type: ignore[attr-defined]

        def refuse(gradients: Any) -> None:
            raise RuntimeError(f"{where} came after the call that this goes back through.")

        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(refuse)
