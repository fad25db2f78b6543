"""Operators that copy one tensor over another: each of the two may be on the host or on the device.

The result is where the first one is. As `copy_` is, they are what moves data between devices. What puts one
tensor into a part of another gives strides with the gaps that the latter has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording.kernel_source import kernel_of
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.transfer import download


def _kernel(op: Any) -> Callable[..., Any]:
    on_device: Callable[..., Any] | None = None

    def run(self: torch.Tensor, src: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal on_device
        if not is_pjrt(self):
            return op(self, download(src), *args, **kwargs)
        if on_device is None:
            on_device = kernel_of(op)
        result = on_device(self, src, *args, **kwargs)
        return _with_gaps_of(self, result) if op in _KEEPS_GAPS and _has_gaps(self) else result

    return run


def _has_gaps(x: torch.Tensor) -> bool:
    """Whether elements of its memory are not its own; not so where several of its own are one in memory."""
    return _extent(x) > x.numel() > 0 and 0 not in x.stride()


def _extent(x: torch.Tensor) -> int:
    return 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))


def _with_gaps_of(like: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(_extent(like), dtype=like.dtype, device=like.device)
    return whole.as_strided(like.shape, like.stride()).copy_(result)


_KEEPS_GAPS = frozenset(
    (
        aten.as_strided_scatter.default,
        aten.diagonal_scatter.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    )
)


def _lists(op: Any) -> Callable[..., None]:
    """One operator where all that is written is on the device, else each tensor for itself."""
    on_device: Callable[..., Any] | None = None

    def run(self: list[torch.Tensor], src: list[torch.Tensor], non_blocking: bool = False) -> None:
        nonlocal on_device
        if len(self) != len(src):
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {len(self)} and {len(src)}"
            )
        if not all(map(is_pjrt, self)):
            for x, source in zip(self, src, strict=True):
                x.copy_(source, non_blocking)
            return
        if on_device is None:
            on_device = kernel_of(op)
        on_device(self, src, non_blocking)

    return run


_ONE_TENSOR: dict[Any, Any] = {
    op: _kernel(op)
    for op in (
        aten.as_strided_scatter.default,
        aten.diagonal_scatter.default,
        aten.fill.Tensor,
        aten.fill_.Tensor,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    )
}

KERNELS: dict[Any, Any] = {
    **_ONE_TENSOR,
    aten._foreach_copy_.default: _lists(aten._foreach_copy_.default),
}
