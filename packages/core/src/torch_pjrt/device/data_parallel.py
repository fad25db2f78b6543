"""`nn.DataParallel` over `pjrt`: there is one device, so its batch goes there as a whole.

PyTorch takes the accelerator for it, also where the model is on the CPU, and cuts and joins batches by
functions in C++ that know CUDA alone, and that are not there without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import _utils
from torch.nn.parallel import comm


def install() -> None:
    """Wrap `comm.scatter` and `comm.gather`; does nothing the second time."""
    if getattr(comm.scatter, "knows_pjrt", False):
        return
    original_scatter, original_gather = comm.scatter, comm.gather

    @wraps(original_scatter)
    def scatter(
        tensor: torch.Tensor, devices: Iterable[Any] | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        devices = devices if devices is None else list(devices)
        if (
            devices is not None
            and len(devices) == 1
            and _utils._get_available_device_type() == "pjrt"
        ):
            return (_as_pairs(tensor).to("pjrt"),)
        return original_scatter(tensor, devices, *args, **kwargs)

    @wraps(original_gather)
    def gather(
        tensors: Sequence[torch.Tensor], dim: int = 0, destination: Any = None, **kwargs: Any
    ) -> Any:
        tensors = list(tensors)
        if len(tensors) == 1 and tensors[0].device.type == "pjrt" and kwargs.get("out") is None:
            on_host = destination == -1 or (
                isinstance(destination, (str, torch.device))
                and torch.device(destination).type == "cpu"
            )
            return _as_pairs(tensors[0]).to("cpu" if on_host else "pjrt")
        return original_gather(tensors, dim, destination, **kwargs)

    scatter.knows_pjrt = True  # type: ignore[attr-defined]
    comm.scatter, comm.gather = scatter, gather


def _as_pairs(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs: the callers make them complex again."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
