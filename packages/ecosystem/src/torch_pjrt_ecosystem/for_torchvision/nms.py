"""`torchvision.ops.nms` on the device: one program, and a read of how many boxes are kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_registered: list[Any] = []


def install(_module: Any) -> None:
    """Call when torchvision has its operators."""
    if _registered:
        return
    library = torch.library.Library("torchvision", "IMPL")
    library.impl("nms", _nms, "PrivateUse1")
    _registered.append(library)


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    _check(dets, scores)
    if not len(dets):
        return dets.new_empty(0, dtype=torch.int64)
    from torch_pjrt_ecosystem.for_torchvision.kept_boxes import kept_boxes

    order = scores.sort(stable=True, descending=True).indices
    return order[kept_boxes(dets[order], iou_threshold)]


def _check(dets: Tensor, scores: Tensor) -> None:
    """What torchvision checks, in its words."""
    for is_right, words in (
        (dets.ndim == 2, f"boxes should be a 2d tensor, got {dets.ndim}D"),
        (
            dets.ndim != 2 or dets.shape[1] == 4,
            f"boxes should have 4 elements in dimension 1, got {dets.shape[-1] if dets.ndim else 0}",
        ),
        (scores.ndim == 1, f"scores should be a 1d tensor, got {scores.ndim}D"),
        (
            dets.shape[:1] == scores.shape[:1],
            "boxes and scores should have same number of elements in dimension 0, got "
            f"{len(dets) if dets.ndim else 0} and {len(scores) if scores.ndim else 0}",
        ),
    ):
        if not is_right:
            raise RuntimeError(words)
