"""Parameters of `FullyShardedDataParallel`, which go to the host and back.

To be read there, or with `CPUOffload` in each step, forward and backward. Such a parameter has insides on
both sides: those of the device keep their place in graphs and the gradient that backward has put there. To
PyTorch a gradient stays where it is while the parameter moves, and may be moved while the parameter stays. So
`.grad` is Python's here: that of either side, or the one that was given and has moved since.
"""

from __future__ import annotations

from functools import cache, wraps
from itertools import chain
from typing import Any

import torch

from torch_pjrt.device.imports import after_import

# Attributes by which PyTorch knows flat parameters, and those that are parts of one.
_OF_FSDP = ("_is_flat_param", "_fsdp_flattened")
# On these: a tensor with what is theirs on the other device, gradient and places in graphs included.
_ELSEWHERE = "_torch_pjrt_elsewhere"
_GIVEN = "_torch_pjrt_gradient"  # the object that `.grad` was set to
_grad: Any = torch._C.TensorBase.grad  # a descriptor of C


def install() -> None:
    """Prepare for gradients that move; does nothing the second time."""
    after_import("torch.distributed.fsdp._flat_param", _let_gradients_move)


def moves(tensor: Any) -> bool:
    """Whether it is such a parameter."""
    return any(getattr(tensor, name, False) for name in _OF_FSDP)


def swap(tensor: Any, data: torch.Tensor) -> None:
    """Give the parameter its insides on the other device, with the content of `data`."""
    other = getattr(tensor, _ELSEWHERE, None)
    if other is None:
        _let_gradient_move(tensor)
        other = data.detach().requires_grad_(tensor.requires_grad)
        setattr(tensor, _ELSEWHERE, other)
    else:
        other.data = data
        other.requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, other)  # type: ignore[attr-defined]


class _Moving:
    """What is added to the class of such a parameter."""

    @property
    def grad(self) -> torch.Tensor | None:
        own, given, other = (
            _grad.__get__(self),
            vars(self).get(_GIVEN),
            vars(self).get(_ELSEWHERE),
        )
        if own is None:
            return None if other is None else _grad.__get__(other)
        return own if given is None or given.device == own.device else given

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _grad.__set__(self, value)
        setattr(self, _GIVEN, value)
        if (other := vars(self).get(_ELSEWHERE)) is not None:
            _grad.__set__(other, None)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None


def _let_gradient_move(parameter: Any) -> None:
    if not isinstance(parameter, _Moving):
        parameter.__class__ = _moving(type(parameter))


@cache
def _moving(of: type) -> type:
    """A class like this one, of the same name."""
    return type(of)(
        of.__name__, (_Moving, of), {"__module__": of.__module__, "__doc__": of.__doc__}
    )


def _let_gradients_move(flat_param: Any) -> None:
    """Original parameters on the host get gradients on the device, where these are whole: in `no_sync()`."""
    handles = flat_param.FlatParamHandle
    original = handles._use_unsharded_grad_views

    @wraps(original)
    def use_unsharded_grad_views(self: Any) -> None:
        if self._offload_params and self.device.type == "pjrt":
            for parameter in chain(self.flat_param._params, self.flat_param._shared_params):
                _let_gradient_move(parameter)
        original(self)

    handles._use_unsharded_grad_views = use_unsharded_grad_views
