"""timm: models trained with its optimizers, losses, Mixup and average of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import timm
import timm.data
import timm.loss
import timm.optim
import timm.utils
import torch

from library_examples import check_is_on
from small import Costs


def _trained(model: Any, device: str, costs: Costs) -> Any:
    model = model.to(device)
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05)
    loss_of = timm.loss.SoftTargetCrossEntropy()
    np.random.seed(0)
    mixup = timm.data.Mixup(mixup_alpha=0.8, num_classes=10)
    average = timm.utils.ModelEmaV3(model, decay=0.9)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(8):
        costs.mark()
        images = torch.randn(16, 3, 64, 64, generator=generator)
        labels = torch.randint(10, (16,), generator=generator)
        mixed, targets = mixup(images, labels)
        loss = loss_of(model(mixed.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        timm.utils.dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model)
        losses.append(loss.detach())
    costs.mark()
    check_is_on(average.module, device)
    return [loss.item() for loss in losses]


def resnet(device: str, costs: Costs) -> Any:
    """Of ten layers."""
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=10)
    return _trained(model, device, costs)


def vit(device: str, costs: Costs) -> Any:
    """Of two blocks."""
    torch.manual_seed(0)
    given: Any = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **given)
    return _trained(model, device, costs)
