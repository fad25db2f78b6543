"""The modules that PyTorch's own database leaves out: how each is made, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


def floats(*shape: int, seed: int = 0) -> torch.Tensor:
    """A leaf of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).requires_grad_()


def indices(*shape: int, below: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Row:
    """One module and one input. `training` None stands for both modes."""

    make: Callable[[], nn.Module]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    training: bool | None = None

    @property
    def name(self) -> str:
        return type(self.make()).__name__


def row(make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> Row:
    return Row(make, args, kwargs)


def in_eval(make: Callable[[], nn.Module], *args: Any) -> Row:
    """For modules whose numbers are random in training."""
    return Row(make, args, training=False)


class Pooled(nn.Module):
    """Max pooling and its inverse, which takes the places of the maxima."""

    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, positions = self.pool(x)
        return self.unpool(y, positions, output_size=x.shape)


class Named(nn.Module):
    """Modules and parameters in every container there is."""

    unsaved: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Identity()])
        self.named = nn.ModuleDict({"act": nn.Tanh(), "linear": nn.Linear(3, 3)})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))])
        self.scales = nn.ParameterDict({"a": nn.Parameter(torch.ones(3)), "b": None})
        self.register_buffer("shift", torch.ones(3))
        self.register_buffer("unsaved", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        x = self.named["linear"](self.named["act"](x)) * self.scales["a"] + self.shift
        return x * sum(self.weights) + self.unsaved


def _apart(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x - y).abs().sum(-1)


OFFSETS = torch.tensor([0, 2, 5])

ROWS: list[Row] = [
    row(
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8], 2.0),
        floats(5, 8),
        indices(5, below=12),
    ),
    in_eval(lambda: nn.AlphaDropout(0.3), floats(3, 4)),
    row(lambda: nn.ChannelShuffle(2), floats(2, 4, 3, 3)),
    row(lambda: nn.CosineSimilarity(1), floats(4, 5), floats(4, 5, seed=1)),
    row(lambda: nn.CrossMapLRN2d(3), floats(2, 5, 3, 3)),
    in_eval(nn.Dropout, floats(3, 4)),
    in_eval(nn.Dropout1d, floats(2, 3, 4)),
    in_eval(nn.Dropout2d, floats(2, 3, 4, 4)),
    in_eval(nn.Dropout3d, floats(2, 3, 4, 4, 4)),
    in_eval(nn.FeatureAlphaDropout, floats(2, 3, 4, 4)),
    row(lambda: nn.Dropout(0.0), floats(3, 4)),
    row(lambda: nn.Dropout(1.0), floats(3, 4)),
    row(lambda: nn.EmbeddingBag(10, 3, mode="sum"), indices(8, below=10), OFFSETS),
    row(lambda: nn.EmbeddingBag(10, 3, mode="mean"), indices(2, 4, below=10)),
    row(lambda: nn.EmbeddingBag(10, 3, mode="max"), indices(8, below=10), OFFSETS),
    row(lambda: nn.EmbeddingBag(10, 3, padding_idx=2), indices(8, below=10), OFFSETS),
    row(
        lambda: nn.EmbeddingBag(10, 3, mode="sum"),
        indices(2, 4, below=10),
        per_sample_weights=floats(2, 4),
    ),
    row(lambda: nn.Embedding(10, 3, padding_idx=2), indices(2, 4, below=10)),
    row(lambda: nn.Embedding(10, 3, max_norm=1.0), indices(2, 4, below=10)),
    row(lambda: nn.Embedding(10, 3, scale_grad_by_freq=True), indices(2, 8, below=10)),
    row(nn.Flatten, floats(2, 3, 4)),
    row(lambda: nn.Fold((4, 5), (2, 2), padding=1, stride=2), floats(1, 12, 9)),
    row(nn.Hardsigmoid, floats(4, 5)),
    row(nn.Identity, floats(4, 5)),
    row(lambda: Pooled(nn.MaxPool1d(2, return_indices=True), nn.MaxUnpool1d(2)), floats(2, 3, 8)),
    row(
        lambda: Pooled(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)), floats(2, 3, 6, 6)
    ),
    row(
        lambda: Pooled(nn.MaxPool3d(2, return_indices=True), nn.MaxUnpool3d(2)),
        floats(2, 3, 4, 4, 4),
    ),
    row(Named, floats(2, 3)),
    row(nn.PairwiseDistance, floats(4, 5), floats(4, 5, seed=1)),
    row(lambda: nn.PairwiseDistance(1, keepdim=True), floats(4, 5), floats(4, 5, seed=1)),
    row(lambda: nn.PixelShuffle(2), floats(2, 8, 3, 3)),
    row(lambda: nn.PixelUnshuffle(2), floats(2, 2, 6, 6)),
    in_eval(nn.RReLU, floats(4, 5)),
    in_eval(lambda: nn.SyncBatchNorm(3), floats(2, 3, 4)),
    row(
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), 2),
        floats(5, 2, 8),
        floats(6, 2, 8, seed=1),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5),
        tgt_is_causal=True,
    ),
    row(nn.TripletMarginLoss, floats(4, 5), floats(4, 5, seed=1), floats(4, 5, seed=2)),
    row(
        lambda: nn.TripletMarginLoss(swap=True, p=1, reduction="none"),
        floats(4, 5),
        floats(4, 5, seed=1),
        floats(4, 5, seed=2),
    ),
    row(
        lambda: nn.TripletMarginWithDistanceLoss(distance_function=_apart, swap=True),
        floats(4, 5),
        floats(4, 5, seed=1),
        floats(4, 5, seed=2),
    ),
    row(lambda: nn.Unflatten(1, (2, 3)), floats(2, 6)),
    row(lambda: nn.Unfold((2, 3), padding=1), floats(2, 3, 5, 6)),
    row(lambda: nn.Upsample(scale_factor=2), floats(2, 3, 4)),
    row(lambda: nn.Upsample(size=(5, 7), mode="bilinear"), floats(2, 3, 4, 4)),
    row(lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"), floats(2, 3, 4, 4)),
    row(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), floats(1, 2, 3, 4, 4)),
    row(lambda: nn.Upsample(size=6, mode="linear", align_corners=True), floats(2, 3, 4)),
    row(lambda: nn.UpsamplingBilinear2d(scale_factor=2), floats(2, 3, 4, 4)),
    row(lambda: nn.UpsamplingNearest2d(size=7), floats(2, 3, 4, 4)),
    row(
        lambda: nn.FractionalMaxPool2d(
            2, output_size=3, _random_samples=torch.full((2, 3, 2), 0.4)
        ),
        floats(2, 3, 7, 8),
    ),
    row(
        lambda: nn.FractionalMaxPool3d(
            2, output_ratio=0.5, _random_samples=torch.full((2, 3, 3), 0.7)
        ),
        floats(2, 3, 6, 7, 8),
    ),
    row(
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, batch_first=True, add_bias_kv=True),
        floats(2, 3, 8),
        floats(2, 5, 6),
        floats(2, 5, 4),
        average_attn_weights=False,
    ),
    row(
        lambda: nn.MultiheadAttention(8, 2, add_zero_attn=True),
        floats(3, 2, 8),
        floats(3, 2, 8, seed=1),
        floats(3, 2, 8, seed=2),
        need_weights=False,
        attn_mask=torch.ones(3, 3).triu(1).bool(),
    ),
    row(lambda: nn.LSTM(3, 4, proj_size=2, num_layers=2, bidirectional=True), floats(5, 2, 3)),
    row(
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 2)),
        floats(2, 2, 5, 5),
    ),
]
