"""`linear` as one call with one backward. Its nodes are those of the operators that PyTorch composes it of.

PyTorch has a derivative of `linear`, for devices that have a kernel of it. It is taken where a call has only
plain tensors of this device, and no mode or transform watches what the call is composed of. Else PyTorch
composes the call before autograd, as for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Parameter

from torch_pjrt.overloads import aten, present
from torch_pjrt.tensor.recording.composed import Composed, is_unwatched

Tensor = torch.Tensor
Optional = torch.Tensor | None

_LINEAR = aten.linear.default
_BACKWARD = aten.linear_backward.default
_PLAIN = frozenset((Tensor, Parameter, type(None)))
_STRIDED = torch.strided
_FLOATS = frozenset((torch.float32, torch.float64, torch.bfloat16, torch.float16))
# The key of nested tensors. For these each PyTorch has a kernel of `linear`, so autograd has its derivative
# there, and calls what this device has below. We refuse nested tensors, and have our `linear` there. With a
# kernel for plain tensors, PyTorch would no longer decompose `linear` where it traces graphs.
_BELOW = "NestedTensorPrivateUse1"
_DIFFERENTIATED = torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutogradNestedTensor
) | torch._C.DispatchKeySet(torch._C._dispatch_key_parse(_BELOW))  # pyright: ignore[reportAttributeAccessIssue]
# Where a PyTorch lacks either, calls with gradients are composed.
_HAS_DERIVATIVE = bool(present({_BACKWARD: None})) and bool(
    torch._C._dispatch_has_kernel_for_dispatch_key("aten::linear", "NestedTensorCPU")
)


def linear_with_gradient(input: Tensor, weight: Tensor, bias: Optional = None) -> Tensor:
    """Before autograd: one node of it where both factors have gradients, none where nothing has.

    Where one of them has none, PyTorch's composition keeps less for backward.
    """
    if _is_unwatched(input, weight, bias) and _is_usual(input, weight, bias):
        if not torch.is_grad_enabled():
            return linear(input, weight, bias)
        if weight.requires_grad:
            if input.requires_grad and _HAS_DERIVATIVE:
                return _LINEAR.redispatch(_DIFFERENTIATED, input, weight, bias)
        elif not input.requires_grad and (bias is None or not bias.requires_grad):
            return linear(input, weight, bias)
    return _LINEAR.decompose(input, weight, bias)


def _is_unwatched(x: Optional, y: Optional, z: Optional) -> bool:
    """Whether all are plain tensors, and no mode or transform wants to see simpler operators."""
    return (
        x.__class__ in _PLAIN and y.__class__ in _PLAIN and z.__class__ in _PLAIN and is_unwatched()
    )


def _is_usual(input: Tensor, weight: Tensor, bias: Optional) -> bool:
    """Shapes and dtypes that the derivative is made for."""
    if input.dtype not in _FLOATS or input.dim() < 2 or weight.dim() != 2:
        return False
    if input.layout is not _STRIDED or weight.layout is not _STRIDED:
        return False
    return bias is None or (bias.dim() == 1 and bias.shape[0] == weight.shape[0])


def linear(input: Tensor, weight: Tensor, bias: Optional = None) -> Tensor:
    """What PyTorch composes, at once."""
    return _linear((input, weight, bias))[0]  # pyright: ignore[reportReturnType]


def linear_backward(
    self: Tensor, grad_output: Tensor, weight: Tensor, output_mask: Sequence[bool]
) -> tuple[Optional, ...]:
    """The gradients of input, weight and bias that are asked for."""
    return _backward((self, grad_output, weight), tuple(output_mask))


def linear_backward_with_gradient(
    self: Tensor, grad_output: Tensor, weight: Tensor, output_mask: Sequence[bool]
) -> tuple[Optional, ...]:
    """Before autograd: of simpler operators where it is differentiated itself, or watched."""
    if torch.is_grad_enabled() or not _is_unwatched(self, grad_output, weight):
        return _composed_backward(tuple(output_mask), self, grad_output, weight)
    return linear_backward(self, grad_output, weight, output_mask)


def _composed(key: None, input: Tensor, weight: Tensor, bias: Optional) -> Tensor:
    return _LINEAR.decompose(input, weight, bias)


def _composed_backward(
    wanted: tuple[bool, ...], input: Tensor, grad: Tensor, weight: Tensor
) -> tuple[Optional, ...]:
    """As the derivatives of views, of the product and of its transposition are together."""
    rows = math.prod(input.shape[:-1])
    flat = grad.reshape(rows, grad.shape[-1])
    of_input = of_weight = of_bias = None
    if wanted[0]:
        of_input = torch.mm(flat, weight).view(input.shape)
    if wanted[1]:
        of_weight = torch.mm(flat.t(), input.reshape(rows, input.shape[-1]))
    if wanted[2]:
        of_bias = flat.sum(0)
    return of_input, of_weight, of_bias


_linear = Composed(_composed, "linear")
_backward = Composed(_composed_backward, "the backward of linear")

KERNELS: dict[Any, Any] = {_BACKWARD: linear_backward}
# Within `torch.vmap`, of whatever device: PyTorch would call it for each of the batch.
BY_KEY: dict[str, dict[Any, Any]] = {
    "FuncTorchBatchedDecomposition": {_BACKWARD: linear_backward_with_gradient},
    _BELOW: {_LINEAR: linear},
}
# Also before autograd: whether one node of it is taken is decided there.
ABOVE_AUTOGRAD: dict[Any, Any] = {
    _LINEAR: linear_with_gradient,
    _BACKWARD: linear_backward_with_gradient,
}
