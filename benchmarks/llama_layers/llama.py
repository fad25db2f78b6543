"""The model as one writes it in PyTorch, its sizes, and how many FLOPs and bytes a training step takes.

All contestants start from the same weights, which each makes on its own device from a hash of their
positions: there would be gigabytes to bring otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

RATE = 3e-4
SPREAD = 0.02  # weights are even in [-SPREAD, SPREAD)
EPSILON = 1e-5
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Sizes:
    """Of the model and of a batch. `width` is Llama's hidden size, `inner` that of its feed-forward."""

    layers: int
    width: int = 4096
    heads: int = 32
    inner: int = 11008
    vocabulary: int = 32_000
    length: int = 4096
    batch: int = 1

    @property
    def matrices_of_a_layer(self) -> dict[str, tuple[int, int]]:
        """Results by inputs, as PyTorch stores them."""
        w, i = self.width, self.inner
        return {
            **dict.fromkeys(("query", "key", "value", "output"), (w, w)),
            "gate": (i, w),
            "up": (i, w),
            "down": (w, i),
        }

    @property
    def weights_of_a_layer(self) -> int:
        """Of its matrices; the norms' do not count."""
        return sum(a * b for a, b in self.matrices_of_a_layer.values())


TINY = Sizes(layers=2, width=64, heads=4, inner=176, vocabulary=256, length=64, batch=2)


def flops_of_a_step(sizes: Sizes, *, causal: bool = True) -> int:
    """Of the model: each weight of a matrix multiplies and adds once for a token forward, and twice backward.

    What checkpointing computes again does not count, nor what is no product of matrices. Of attention's
    two products a causal one needs half; `causal=False` counts all, as XLA does where it writes them out.
    """
    tokens = sizes.batch * sizes.length
    weights = sizes.layers * sizes.weights_of_a_layer + sizes.vocabulary * sizes.width
    attention = sizes.layers * 2 * sizes.length * sizes.width // (2 if causal else 1)
    return 6 * tokens * (weights + attention)


def layers_that_fit(memory_bytes: int, sizes: Sizes, most: int = 32) -> int:
    """How many layers of these sizes a device has room for, with a fifth of it left for what lies between.

    Weights, gradients and two numbers of the optimizer in bfloat16, and the input of each layer.
    """
    one = 8 * sizes.weights_of_a_layer + 2 * sizes.batch * sizes.length * sizes.width
    rest = 16 * sizes.vocabulary * sizes.width
    rest += sizes.batch * sizes.length * (12 * sizes.vocabulary + 16 * sizes.inner)
    return max(1, min(most, int((memory_bytes * 0.8 - rest) / one)))


def hashed(positions: Any, seed: int) -> Any:
    """Even numbers in [-SPREAD, SPREAD) from integers: int64 in PyTorch, uint32 in JAX, the same in both."""
    # Factors under 2**15 and words of 32 bits: what JAX takes for an integer, and int64 has room for.
    x = (positions + seed * 7919) & 0x7FFFFFFF
    for shift, factor in ((15, 0x2C1B), (12, 0x297B), (15, 0x5A35)):
        x = ((x ^ (x >> shift)) * factor) & 0x7FFFFFFF
    return ((x ^ (x >> 15)) & 0xFFFFFF) * (SPREAD / (1 << 23)) - SPREAD


def seed_of(layer: int, name: str) -> int:
    """What a matrix is hashed with; tables that belong to no layer have the layer -1."""
    return (layer + 1) * 1009 + sum(map(ord, name))


def batches_of(sizes: Sizes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Tokens, and the ones that follow."""
    random = np.random.default_rng(0)
    shape = (sizes.batch, sizes.length + 1)
    texts = [random.integers(0, sizes.vocabulary, shape, np.int32) for _ in range(4)]
    return [(text[:, :-1].copy(), text[:, 1:].copy()) for text in texts]


def angles_of(sizes: Sizes) -> np.ndarray:
    """How far each pair of a head's numbers is turned at each position: (length, width of a head / 2)."""
    half = sizes.width // sizes.heads // 2
    return np.outer(np.arange(sizes.length), ROTARY_BASE ** (-np.arange(half) / half))


def model_of(sizes: Sizes, device: Any, *, checkpointed: bool = True, filled: bool = True) -> Any:
    """The model in bfloat16 on the device; its weights have no content unless `filled`."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    how: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(sizes.width, **how))

        def forward(self, x: Tensor) -> Tensor:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)
            return wide.to(x.dtype) * self.weight

    def turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention, self.before_feeding = Norm(), Norm()
            self.matrices = nn.ParameterDict(
                {n: torch.empty(s, **how) for n, s in sizes.matrices_of_a_layer.items()}
            )

        def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
            def by(name: str, x: Tensor) -> Tensor:
                return functional.linear(x, self.matrices[name])

            def heads(name: str) -> Tensor:
                return by(name, y).unflatten(-1, (sizes.heads, -1)).transpose(1, 2)

            y = self.before_attention(x)
            query, key = (turned(heads(name), cosine, sine) for name in ("query", "key"))
            mixed = functional.scaled_dot_product_attention(
                query, key, heads("value"), is_causal=True
            )
            x = x + by("output", mixed.transpose(1, 2).flatten(2))
            y = self.before_feeding(x)
            return x + by("down", functional.silu(by("gate", y)) * by("up", y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width, **how))
            self.layers = nn.ModuleList(Layer() for _ in range(sizes.layers))
            self.norm = Norm()
            self.head = nn.Parameter(torch.empty(sizes.vocabulary, sizes.width, **how))
            angles = torch.from_numpy(angles_of(sizes))
            for name, table in (("cosine", angles.cos()), ("sine", angles.sin())):
                self.register_buffer(name, table.to(**how), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            y = functional.embedding(x, self.tokens)
            for layer in self.layers:
                turning = (self.cosine, self.sine)
                if checkpointed:
                    y = checkpoint(layer, y, *turning, use_reentrant=False)
                else:
                    y = layer(y, *turning)
            return functional.linear(self.norm(y), self.head)

    model: Any = Llama()
    if filled:
        _fill(model, device)
    return model


def _fill(model: Any, device: Any) -> None:
    import torch

    def fill(parameter: Any, layer: int, name: str) -> None:
        positions = torch.arange(parameter.numel(), device=device)
        parameter.copy_(hashed(positions, seed_of(layer, name)).view(parameter.shape))
        parameter.view(-1)[:1].float().sum().item()  # one after the other

    with torch.no_grad():
        for name in ("tokens", "head"):
            fill(getattr(model, name), -1, name)
        for number, layer in enumerate(model.layers):
            for name, parameter in layer.matrices.items():
                fill(parameter, number, name)


def step_of(
    model: Any, compiled: Callable[[Any], Any] | None = None, **how: Any
) -> Callable[[Any, Any], Any]:
    """The training step as people write it, of tensors on the device; `how` is for AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, **how)

    def loss_of(tokens: Any, targets: Any) -> Any:
        logits = model(tokens)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = compiled(loss_of) if compiled else loss_of

    def train(tokens: Any, targets: Any) -> Any:
        loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train
