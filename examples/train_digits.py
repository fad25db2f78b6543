"""Train a small ResNet on the 1,797 handwritten digits that ship inside scikit-learn.

    python train_digits.py                  # on the device "pjrt"
    python train_digits.py --device cpu     # the same, to compare

It ends by naming digits that it has never seen.
"""

import argparse
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

BATCH = 64


class Residual(nn.Module):
    """Two convolutions, and the input added back; `stride` 2 halves height and width."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.shortcut = (
            nn.Identity()
            if channels_in == channels_out and stride == 1
            else nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def build_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16, 16),
        nn.MaxPool2d(2),
        Residual(16, 32),
        Residual(32, 64, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(64, 10),
    )


def read_digits() -> tuple[TensorDataset, TensorDataset]:
    """Digits to train on and, one in five, to test with: images of 8x8 grey levels, and labels."""
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = pixels.float().view(-1, 1, 8, 8) / 16 - 0.5
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    test, training = shuffled.tensor_split([len(images) // 5])
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[test], labels[test]),
    )


def make_batches(digits: TensorDataset, seed: int = 0) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(digits, BATCH, shuffle=True, drop_last=True, generator=generator)


def loss_of(model: nn.Module, batch: tuple[Tensor, ...], device: str) -> Tensor:
    images, labels = (part.to(device) for part in batch)
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


def train(
    model: nn.Module, batches: DataLoader[tuple[Tensor, ...]], epochs: int, device: str
) -> Iterator[Tensor]:
    """Take a step for each loss that is asked for. Losses stay on the device until read."""
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(batches))
    for _ in range(epochs):
        for batch in batches:
            model.train()
            optimizer.zero_grad()
            loss = loss_of(model, batch, device)
            loss.backward()
            optimizer.step()
            schedule.step()
            yield loss.detach()


@torch.no_grad()
def accuracy(model: nn.Module, digits: TensorDataset, device: str) -> float:
    """The share of `digits` that the model names rightly."""
    model.eval()
    images, labels = (part.to(device) for part in digits.tensors)
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def programs_compiled(device: str) -> int | str:
    """How many programs the device has compiled so far, where it counts them."""
    count = getattr(getattr(torch, device, None), "programs_compiled", None)
    return count() if count else "n/a"


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small ResNet on handwritten digits.")
    parser.add_argument("--device", default="pjrt")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    device, epochs = arguments.device, arguments.epochs

    training, test = read_digits()
    model = build_model().to(device)
    batches = make_batches(training)
    print(f"{len(training)} digits to train on, {len(test)} to test with, on {device}")

    steps = epochs * len(batches)
    with tqdm(total=steps, desc="training", unit="step") as progress:
        for step, loss in enumerate(train(model, batches, epochs, device), start=1):
            progress.update()
            if step % 10 == 0:
                compiled = programs_compiled(device)
                progress.set_postfix_str(f"loss {loss.item():.3f}, {compiled} programs compiled")
    print(f"test accuracy {accuracy(model, test, device):.1%}")


if __name__ == "__main__":
    main()
