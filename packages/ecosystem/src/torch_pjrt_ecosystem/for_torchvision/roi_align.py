"""`torchvision.ops.roi_align` for the device. The first call imports its rules: importing torchvision starts
no JAX."""

from __future__ import annotations

from typing import Any

import torch

_registered: list[Any] = []


def install(_module: Any) -> None:
    """Call when torchvision has its operators."""
    if not _registered:
        library = torch.library.Library("torchvision", "IMPL")
        library.impl("roi_align", _roi_align, "PrivateUse1")
        library.impl("_roi_align_backward", _backward, "PrivateUse1")
        _registered.append(library)


def _roi_align(*args: Any) -> torch.Tensor:
    from torch_pjrt_ecosystem.for_torchvision.pooled_boxes import pooled_boxes

    return pooled_boxes(*args)


def _backward(*args: Any) -> torch.Tensor:
    from torch_pjrt_ecosystem.for_torchvision.pooled_boxes import spread_boxes

    return spread_boxes(*args)
