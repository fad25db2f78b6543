"""The models that are trained, as PyTorch programs; needs nothing but PyTorch and `examples/`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

RATE = 3e-4  # of AdamW; all else is PyTorch's defaults
MOMENTUM, SGD_RATE, DECAY = 0.9, 0.1, 1e-3
SMOOTHING = 0.1
N_BATCHES = 16
Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class GPTSizes:
    """The sizes of the GPT of `examples/train_gpt.py`, and of its batches."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int
    vocabulary: int


@dataclass(frozen=True)
class Workload:
    """A model, its batches, its loss and its optimizer.

    build     the model, from PyTorch's current seed.
    batches   endless: what the model takes, and the classes that it should name, int32.
    adam      AdamW, or else SGD with Nesterov's momentum.
    gpt       its sizes, if it is a GPT.
    """

    title: str
    build: Callable[[], nn.Module]
    batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]
    adam: bool = True
    smoothing: float = 0.0
    gpt: GPTSizes | None = None

    def optimizer(self, parameters: Iterable[Any], **how: Any) -> torch.optim.Optimizer:
        """PyTorch's optimizer of this workload."""
        if self.adam:
            return torch.optim.AdamW(parameters, lr=RATE, **how)
        return torch.optim.SGD(
            parameters, lr=SGD_RATE, momentum=MOMENTUM, nesterov=True, weight_decay=DECAY
        )

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of logits [..., classes] and targets [...]."""
        return F.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), label_smoothing=self.smoothing
        )


def gpt(sizes: GPTSizes) -> nn.Module:
    from train_gpt import GPT

    return GPT(sizes.layers, sizes.width, sizes.heads, sizes.length, sizes.vocabulary, dropout=0.0)


def texts(sizes: GPTSizes) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of real text, and the byte that follows each of their bytes."""
    from train_gpt import BATCH, LENGTH, make_batches, read_text

    assert sizes.batch <= BATCH
    assert sizes.length <= LENGTH
    for tokens, targets in make_batches(read_text()[0]):
        window = torch.cat([tokens, targets[:, -1:]], dim=1) % sizes.vocabulary
        window = window[: sizes.batch, : sizes.length + 1]
        yield window[:, :-1], window[:, 1:]


def mlp(layers: int = 20, width: int = 128, classes: int = 10) -> nn.Module:
    hidden = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, classes))


def vectors(
    batch: int = 64, width: int = 128, classes: int = 10
) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield (
            torch.randn(batch, width, generator=generator),
            torch.randint(classes, (batch,), generator=generator),
        )


def resnet() -> nn.Module:
    from train_digits import build_model

    return build_model()


def digits() -> Iterator[tuple[Tensor, Tensor]]:
    from train_digits import make_batches, read_digits

    while True:
        yield from make_batches(read_digits()[0])  # type: ignore[misc]


def of_gpt(name: str, **sizes: int) -> Workload:
    found = GPTSizes(**sizes)
    title = (
        f"{name}: {found.layers} layers, width {found.width}, {found.heads} heads, batch "
        f"{found.batch}, length {found.length}, vocabulary {found.vocabulary}, AdamW"
    )
    return Workload(title, partial(gpt, found), partial(texts, found), gpt=found)


WORKLOADS = {
    "gpt": of_gpt("GPT", layers=6, width=256, heads=8, batch=8, length=128, vocabulary=512),
    "demo-gpt": of_gpt(
        "The demo's GPT", layers=4, width=128, heads=4, batch=8, length=128, vocabulary=256
    ),
    "narrow-gpt": of_gpt(
        "A GPT that is all overhead",
        layers=12,
        width=32,
        heads=4,
        batch=2,
        length=16,
        vocabulary=64,
    ),
    "deep-gpt": of_gpt(
        "A deep and narrow GPT", layers=48, width=32, heads=4, batch=2, length=16, vocabulary=64
    ),
    "resnet": Workload(
        "The demo's ResNet: 8x8 images, batch 64, SGD with momentum",
        resnet,
        digits,
        adam=False,
        smoothing=SMOOTHING,
    ),
    "mlp": Workload("An MLP: 20 layers, width 128, batch 64, AdamW", mlp, vectors),
}


def write_data(workload: Workload, folder: Path) -> None:
    """The weights that all start from, and the batches that all see."""
    torch.manual_seed(0)
    state = workload.build().state_dict()
    np.savez(folder / "weights.npz", **{name: value.numpy() for name, value in state.items()})
    batches = workload.batches()
    pairs = [next(batches) for _ in range(N_BATCHES)]
    np.savez(
        folder / "batches.npz",
        inputs=np.stack([_narrow(inputs) for inputs, _ in pairs]),
        targets=np.stack([_narrow(targets) for _, targets in pairs]),
    )


def _narrow(batch: Tensor) -> np.ndarray:
    return (batch if batch.is_floating_point() else batch.int()).numpy()


def read_data(folder: Path) -> tuple[dict[str, np.ndarray], list[Arrays]]:
    """What `write_data` wrote: the weights by name, and pairs of inputs and targets."""
    with np.load(folder / "weights.npz") as file:
        weights = dict(file)
    with np.load(folder / "batches.npz") as file:
        pairs = list(zip(file["inputs"], file["targets"], strict=True))
    return weights, pairs
