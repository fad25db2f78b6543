"""Higher-order operators that are compositions of plain ones: what PyTorch computes on any device.

`flex_attention` and its backward hold a graph of how a score is modified, which is called on all scores at
once; a package may have registered a kernel for the device that does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch._higher_order_ops.out_dtype import out_dtype_dense

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# Which argument of the backward is what the modification of scores reads, and which result its gradients.
_CAPTURED, _GRADIENTS = 12, 3


def _flex_attention(node: torch.fx.Node, args: Args, kwargs: Kwargs) -> Any:
    with torch.no_grad():
        return _kernel(flex_attention, sdpa_dense)(*args, **kwargs)


def _flex_attention_backward(node: torch.fx.Node, args: Args, kwargs: Kwargs) -> Any:
    """What needs a gradient PyTorch sees from the tensors that were captured, which do not say it here."""
    gradients = node.meta["val"][_GRADIENTS]
    captured = [
        x.detach().requires_grad_(gradient is not None) if isinstance(x, torch.Tensor) else x
        for x, gradient in zip(args[_CAPTURED], gradients, strict=True)
    ]
    args = (*args[:_CAPTURED], tuple(captured), *args[_CAPTURED + 1 :])
    with torch.no_grad():
        return _kernel(flex_attention_backward, sdpa_dense_backward)(*args, **kwargs)


def _kernel(op: Any, composition: Callable[..., Any]) -> Callable[..., Any]:
    return op.py_kernels.get(DispatchKey.PrivateUse1, composition)


def _out_dtype(node: torch.fx.Node, args: Args, kwargs: Kwargs) -> Any:
    return out_dtype_dense(*args, **kwargs)


COMPOSITIONS: dict[str, Callable[[torch.fx.Node, Args, Kwargs], Any]] = {
    "flex_attention": _flex_attention,
    "flex_attention_backward": _flex_attention_backward,
    "out_dtype": _out_dtype,
}
