"""torchvision's operators on boxes, whose kernels on CPU tensors are the reference."""

from __future__ import annotations

from typing import Any

import torch
import torchvision.ops

from library_examples import check_is_on
from small import Costs


def some_boxes(n: int, generator: torch.Generator, size: float = 20.0) -> torch.Tensor:
    """Corners, of boxes up to half as large as where they are."""
    corners = torch.rand(n, 2, generator=generator) * size
    return torch.cat([corners, corners + torch.rand(n, 2, generator=generator) * size / 2], 1)


def nms(device: str, costs: Costs) -> Any:
    """None, one and many boxes, equal scores, four thresholds; and boxes of several kinds."""
    found = []
    for n in (0, 1, 7, 100):
        generator = torch.Generator().manual_seed(n)
        boxes = some_boxes(n, generator).to(device)
        scores = ((torch.rand(n, generator=generator) * 10).round() / 10).to(device)
        for threshold in (0.0, 0.3, 0.5, 1.0):
            kept = torchvision.ops.nms(boxes, scores, threshold)
            check_is_on(kept, device)
            found.append(kept.cpu())
        kinds = torch.randint(3, (n,), generator=generator).to(device)
        found.append(torchvision.ops.batched_nms(boxes, scores, kinds, 0.4).cpu())
    return found


def roi_align(device: str, costs: Costs) -> Any:
    """A convolution learns by what is pooled: sampled as often as the box is large, and twice."""
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3, padding=1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(6):
        costs.mark()
        images = torch.randn(2, 3, 16, 12, generator=generator).to(device)
        where = torch.randint(2, (9, 1), generator=generator).float()
        boxes = torch.cat([where, some_boxes(9, generator, 24.0) - 3], 1).to(device)
        features = model(images)
        pooled = torchvision.ops.roi_align(features, boxes, (5, 3), 0.75, -1, True)
        twice = torchvision.ops.roi_align(features, boxes, 7, 1.0, 2)
        loss = pooled.square().mean() + twice.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    costs.mark()
    return [loss.item() for loss in losses]
