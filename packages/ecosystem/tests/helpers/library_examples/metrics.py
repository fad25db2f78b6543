"""torchmetrics, as its quick start does it."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torchmetrics import classification, regression

from small import Costs


def classes(device: str, costs: Costs) -> Any:
    """A classifier learns; what it gets right is counted on the device, and read at the end."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = torchmetrics.MetricCollection(
        [
            classification.MulticlassAccuracy(4, validate_args=False),
            classification.MulticlassF1Score(4, validate_args=False),
            classification.MulticlassConfusionMatrix(4, validate_args=False),
        ],
        compute_groups=False,
    ).to(device)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        costs.mark()
        x = torch.randn(16, 8, generator=generator).to(device)
        labels = torch.randint(4, (16,), generator=generator).to(device)
        logits = model(x)
        counted.update(logits, labels)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    costs.mark()
    return {name: value.cpu() for name, value in counted.compute().items()}


def others(device: str, costs: Costs) -> Any:
    """One of each family, with its checks."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for made in (
        classification.BinaryAUROC(),
        classification.BinaryAveragePrecision(thresholds=10),
        regression.MeanSquaredError(),
        regression.R2Score(),
        regression.PearsonCorrCoef(),
        regression.SpearmanCorrCoef(),
        torchmetrics.MeanMetric(),
    ):
        metric = made.to(device)
        for _ in range(3):
            x = torch.rand(16, generator=generator)
            y = torch.rand(16, generator=generator)
            if isinstance(metric, torchmetrics.MeanMetric):
                metric.update(x.to(device))
            else:
                is_class = type(metric).__name__.startswith("Binary")
                metric.update(x.to(device), (y.round().long() if is_class else y).to(device))
        found.append(metric.compute().cpu())
    return found
