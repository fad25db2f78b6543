"""`parameter.data = tensor` where the two are on different devices, as sharding a module has it.

PyTorch knows the device types between which a tensor may change its memory in place, and no Python backend is
among them. So the tensor object gets the insides of another one, as `torch.utils.swap_tensors` does it.

Parameters of `FullyShardedDataParallel` go to the host and back, to be read there. They keep their insides on
the device meanwhile, gradient included.
"""

from __future__ import annotations

from typing import Any

import torch

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


def _is_move(from_device: str, to_device: str) -> bool:
    return from_device != to_device and "pjrt" in (from_device, to_device)


# Attributes by which PyTorch knows flat parameters, and those that are parts of one.
_OF_FSDP = ("_is_flat_param", "_fsdp_flattened")
# On these: a tensor with what is theirs on the other device, gradient and places in graphs included.
_ELSEWHERE = "_torch_pjrt_elsewhere"


def _swap(tensor: Any, data: torch.Tensor) -> None:
    where = f"`tensor.data = other` from {tensor.device} to {data.device}"
    if any(getattr(tensor, name, False) for name in _OF_FSDP):
        if tensor.grad is not None and torch._C._current_graph_task_id() != -1:
            raise UnsupportedError(
                f"{where} within backward, as `CPUOffload` of `FullyShardedDataParallel` has it.",
                expected="that the gradient stays, on its device",
                hint="`fully_shard` with `CPUOffloadPolicy()` offloads parameters",
            )
        other = getattr(tensor, _ELSEWHERE, None)
        if other is None:
            other = data.detach().requires_grad_(tensor.requires_grad)
            setattr(tensor, _ELSEWHERE, other)
        else:
            other.data = data
            other.requires_grad_(tensor.requires_grad)
        torch._C._swap_tensor_impl(tensor, other)  # type: ignore[attr-defined]
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
