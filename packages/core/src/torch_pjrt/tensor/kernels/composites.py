"""Composite operators that PyTorch composes otherwise for the CPU, or whose C++ would not do here.

`kron_out` writes through `_unsafe_view`. There a view is an operator like any other, thus a copy here:
products of matrices end with one, and true views cost more. Of others the CPU's kernel lays the result out in
memory otherwise than the composition does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt.graph.tensor_spec import contiguous_strides
from torch_pjrt.overloads import aten
from torch_pjrt.tensor.checks.bounds import NEGATIVE_CLASS
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.cpu_errors import raise_as_on_cpu, raise_if_refused


def kron_out(self: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The Kronecker product, written to `out` as a product's `out=` is: resized, cast or refused."""
    product = torch.kron(self, other)
    return torch.mul(product, torch.ones((), dtype=product.dtype, device="cpu"), out=out)


def max_pool1d(
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> torch.Tensor:
    """As the CPU's own kernel does: contiguous where no gradient is wanted, for floats, with its errors."""
    args = (self, kernel_size, stride, padding, dilation, ceil_mode)
    if not self.is_floating_point():
        raise_if_refused(aten.max_pool1d.default, args, {})
    try:
        pooled = torch.max_pool1d_with_indices(*args)[0]  # pyright: ignore[reportArgumentType]
    except (RuntimeError, IndexError) as refusal:
        raise_as_on_cpu(aten.max_pool1d.default, args, {}, refusal)
        raise
    if pooled.requires_grad or pooled.stride() == contiguous_strides(pooled.shape):
        return pooled
    return pooled.clone(memory_format=torch.contiguous_format)


def one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Rows with a 1 at the class. C++ asks a device for less than the CPU, and only the scatter refuses."""
    op = aten.one_hot.default
    if self.dtype != torch.int64 or not self.numel():
        return op.decompose(self, num_classes)
    if num_classes == -1:
        least, most = torch.stack(torch.aminmax(self)).tolist()
        if least < 0:
            raise RuntimeError(NEGATIVE_CLASS)
        num_classes = most + 1
    elif num_classes < 1:
        raise_if_refused(op, (self, num_classes), {})
    return (self.unsqueeze(-1) == torch.arange(num_classes, device=self.device)).long().contiguous()


def _composed(op: Any) -> Callable[..., Any]:
    """As C++ composes it, with what `tensor/checks/values.py` looks at."""

    def composed(*args: Any, **kwargs: Any) -> Any:
        return op.decompose(*args, **kwargs)

    return composed


def assert_async(self: torch.Tensor, assert_msg: str | None = None) -> None:
    """It refuses sizes; the value is looked at as those are that operators refuse."""
    if self.numel() != 1:
        bool(self)


_QUANTILES = (
    aten.nanquantile.default,
    aten.nanquantile.out,
    aten.quantile.default,
    aten.quantile.out,
)


def _all_of_bytes(op: Any) -> Callable[..., torch.Tensor]:
    """Into an `out=` of bytes: elements are cast before they are looked at, so 0.5 is 0."""

    def all_of(self: torch.Tensor, *dims: Any, out: torch.Tensor, **how: Any) -> torch.Tensor:
        x = self
        if out.dtype == torch.uint8 and self.dtype not in (torch.bool, torch.uint8):
            x = torch.real(self).to(torch.uint8)
        return record.call(op, (x, *dims), {**how, "out": out})

    return all_of


# Also before autograd: what they call is differentiated.
ABOVE_AUTOGRAD: dict[Any, Any] = {
    aten.max_pool1d.default: max_pool1d,
    **{op: _composed(op) for op in _QUANTILES},
}
KERNELS: dict[Any, Any] = {
    **{op: _all_of_bytes(op) for op in (aten.all.all_out, aten.all.dims_out, aten.all.out)},
    aten._assert_async.default: assert_async,
    aten._assert_async.msg: assert_async,
    aten.kron.out: kron_out,
    aten.one_hot.default: one_hot,
    **ABOVE_AUTOGRAD,
}
