"""Image classification as it is mostly written: losses are read, a schedule, a last small batch.

    python benchmarks/scripts/image_classification.py --device cpu

Images are random and belong to classes that can be told apart.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 5


class Residual(nn.Module):
    """Two convolutions beside the way around them."""

    def __init__(self, n: int, out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(n, out, 3, stride, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.around = nn.Conv2d(n, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images to images."""
        return torch.relu(self.main(x) + self.around(x))


def data(n: int, seed: int) -> TensorDataset:
    """Images [3, 16, 16] whose class shifts their channels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=generator)
    shift = torch.linspace(-1, 1, CLASSES)[y, None, None, None]
    return TensorDataset(torch.randn(n, 3, 16, 16, generator=generator) + shift, y)


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    """Percent that are right."""
    return (output.argmax(1) == target).float().mean().item() * 100


def train(
    model: nn.Module, loader: DataLoader[object], optimizer: torch.optim.Optimizer, device: str
) -> float:
    """One epoch; the mean loss."""
    model.train()
    losses = []
    for images, target in loader:
        x, y = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        output = model(x)
        loss = nn.functional.cross_entropy(output, y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        accuracy(output, y)
    return sum(losses) / len(losses)


def validate(model: nn.Module, loader: DataLoader[object], device: str) -> float:
    """Percent of the images that are told right."""
    model.eval()
    found = []
    with torch.no_grad():
        for images, target in loader:
            x, y = images.to(device), target.to(device)
            found.append(accuracy(model(x), y))
    return sum(found) / len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="pjrt")
    device = parser.parse_args().device
    torch.manual_seed(0)
    model = nn.Sequential(
        Residual(3, 16, 1),
        Residual(16, 32, 2),
        Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    training = DataLoader(data(200, 1), batch_size=32, shuffle=True)
    testing = DataLoader(data(100, 2), batch_size=32)
    for epoch in range(3):
        loss = train(model, training, optimizer, device)
        right = validate(model, testing, device)
        schedule.step()
        print(f"epoch {epoch}: loss {loss:.3f}, {right:.0f} % right")


if __name__ == "__main__":
    main()
