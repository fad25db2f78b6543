"""Which boxes non-maximum suppression keeps, as an operator with a rule.

The loop over boxes is on the device, and has one row of overlaps at a time. Overlaps are compared with the
threshold in float64, as torchvision does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

from torch_pjrt.extend import lowers


@torch.library.custom_op("torch_pjrt_ecosystem::kept_boxes", mutates_args=())
def kept_boxes(boxes: Tensor, threshold: float) -> Tensor:
    """Which of boxes (x1, y1, x2, y2), best first, overlap no better one that is kept by more than that."""
    kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    for i in range(len(boxes)):
        if kept[i]:
            w = (torch.minimum(x2[i], x2) - torch.maximum(x1[i], x1)).clamp(min=0)
            h = (torch.minimum(y2[i], y2) - torch.maximum(y1[i], y1)).clamp(min=0)
            overlaps = w * h / (areas[i] + areas - w * h)
            kept[i + 1 :] &= ~(overlaps[i + 1 :].double() > threshold)
    return kept.to(boxes.device)


@kept_boxes.register_fake
def _(boxes: Tensor, threshold: float) -> Tensor:
    return boxes.new_empty(len(boxes), dtype=torch.bool)


@lowers(kept_boxes._opoverload)
def _kept_boxes(boxes: jax.Array, threshold: float) -> jax.Array:
    x1, y1, x2, y2 = boxes.T
    areas = (x2 - x1) * (y2 - y1)
    indices = jnp.arange(len(boxes))

    def with_box(i: jax.Array, kept: jax.Array) -> jax.Array:
        w = jnp.maximum(jnp.minimum(x2[i], x2) - jnp.maximum(x1[i], x1), 0)
        h = jnp.maximum(jnp.minimum(y2[i], y2) - jnp.maximum(y1[i], y1), 0)
        both = w * h
        overlaps = (both / (areas[i] + areas - both)).astype(jnp.float64) > threshold
        return kept & ~(kept[i] & overlaps & (indices > i))

    return lax.fori_loop(0, len(boxes), with_box, jnp.ones(len(boxes), jnp.bool_))
