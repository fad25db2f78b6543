"""Composite operators that PyTorch composes otherwise for the CPU, or whose C++ would not do here.

`kron_out` writes through `_unsafe_view`. There a view is an operator like any other, thus a copy here:
products of matrices end with one, and true views cost more. Of others the CPU's kernel lays the result out in
memory otherwise than the composition does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.graph.face import contiguous_strides
from torch_pjrt.overloads import aten


def kron_out(self: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The Kronecker product, written to `out` as a product's `out=` is: resized, cast or refused."""
    product = torch.kron(self, other)
    return torch.mul(product, torch.ones((), dtype=product.dtype), out=out)


def max_pool1d(
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """Contiguous where no gradient is wanted: the CPU has a kernel of its own for that."""
    pooled = torch.max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)[
        0
    ]
    if pooled.requires_grad or pooled.stride() == contiguous_strides(pooled.shape):
        return pooled
    return pooled.clone(memory_format=torch.contiguous_format)


# Also before autograd: what they call is differentiated.
ABOVE_AUTOGRAD: dict[Any, Any] = {aten.max_pool1d.default: max_pool1d}
KERNELS: dict[Any, Any] = {aten.kron.out: kron_out, **ABOVE_AUTOGRAD}
