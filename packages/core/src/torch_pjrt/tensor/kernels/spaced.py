"""`linspace` and `logspace` between tensors: the result is where `device=` says, wherever the ends are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.argument_binding import mapped
from torch_pjrt.tensor.storage.transfer import download


def _kernel(op: Any) -> Callable[..., Any]:
    def run(*args: Any, device: torch.device | None = None, **kwargs: Any) -> torch.Tensor:
        if device is None or device.type != "pjrt":
            return op(*mapped(args, download), device=device, **kwargs)
        return record.call(op, args, {**kwargs, "device": device})

    return run


KERNELS: dict[Any, Any] = {
    op: _kernel(op)
    for packet in (aten.linspace, aten.logspace)
    for op in (packet.Tensor_Tensor, packet.Tensor_Scalar, packet.Scalar_Tensor)
}
