"""What products by groups look like while Dynamo traces, for tensors of the device.

PyTorch's meta function speaks for CUDA: it takes bfloat16 alone, and asks for rows of 16 bytes. The device
takes what the CPU takes. What else is wrong with a call is said when the graph is recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

from torch_pjrt.plugin import aten

_OP = aten._grouped_mm.default


def register() -> None:
    """Call before the first trace. Does nothing where it is done, or PyTorch lacks the operator."""
    if isinstance(_OP, torch._ops.OpOverload):
        op_implementations_dict.setdefault(_OP, _grouped_mm)


def _grouped_mm(
    mode: Any,
    op: Any,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """A matrix of each group where both factors are matrices, one matrix where only one is."""
    fake_device = getattr(self, "fake_device", self.device)
    if fake_device.type != "pjrt" or bias is not None:
        return NotImplemented
    groups: tuple[Any, ...] = ()
    if offs is None:
        groups = (self.size(0),)
    elif self.dim() == mat2.dim():
        groups = (offs.size(0),)
    shape = (*groups, self.size(-2), mat2.size(-1))
    with mode:
        return torch.empty(shape, dtype=out_dtype or self.dtype, device=fake_device)
