"""Operators that copy one tensor over another: each of the two may be on the host or on the device.

The result is where the first one is. As `copy_` is, they are what moves data between devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.buffer import is_pjrt
from torch_pjrt.tensor.kernel_source import kernel_of
from torch_pjrt.tensor.transfer import download


def _kernel(op: Any) -> Callable[..., Any]:
    on_device: Callable[..., Any] | None = None

    def run(self: torch.Tensor, src: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal on_device
        if not is_pjrt(self):
            return op(self, download(src), *args, **kwargs)
        if on_device is None:
            on_device = kernel_of(op)
        return on_device(self, src, *args, **kwargs)

    return run


KERNELS: dict[Any, Any] = {
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
