"""Times how many classes a chunk of the loss has, on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from torch_pjrt.plugin import client
from torch_pjrt_kernels.cross_entropy import chunked
from torch_pjrt_kernels.tuning.timing import least_s

# How many times the usual ones are tried.
_TIMES = (0.125, 0.25, 0.5, 1, 2, 4)


class Layer(NamedTuple):
    """The layer before the loss."""

    tokens: int
    width: int
    classes: int
    dtype: str = "float32"


def candidates(layer: Layer) -> list[int]:
    """How many classes a chunk may have: the usual number first."""
    usual = chunked.classes_of_chunk(layer.tokens, layer.classes, measured=False)
    tried = [usual, *(int(usual * times) for times in _TIMES)]
    return list(dict.fromkeys(min(n, layer.classes) for n in tried if n > 0))


def tuned_loss(
    layers: Sequence[Layer], *, sizes: Sequence[int] | None = None, repetitions: int = 3
) -> Iterator[tuple[str, int, dict[int, float]]]:
    """For each layer the entry's name, the fastest number of classes, and what each took, in seconds."""
    torch.zeros(1, device="pjrt")  # starts the device
    for layer in layers:
        tried = candidates(layer) if sizes is None else list(dict.fromkeys(sizes))
        steps = {str(n): _step(layer, n) for n in tried}
        took = dict(zip(tried, least_s(steps, repetitions).values(), strict=True))
        entry = chunked.entry_of(layer.tokens, layer.classes)
        yield entry, min(took, key=took.__getitem__), took


def _step(layer: Layer, chunk: int) -> Callable[[], Any]:
    """The loss with the gradients of hidden states and weight."""
    numbers, chip = np.random.default_rng(0), client().chip
    hidden, weight = (
        jax.device_put(numbers.standard_normal((n, layer.width), "float32"), chip)
        for n in (layer.tokens, layer.classes)
    )
    hidden, weight = (x.astype(layer.dtype) for x in (hidden, weight))
    target = jax.device_put(
        numbers.integers(layer.classes, size=layer.tokens).astype("int32"), chip
    )
    loss = partial(
        chunked.linear_cross_entropy,
        ignore_index=-100, label_smoothing=0.0, soft_cap=None, mean=True,
        wanted=(True, True, False), chunk=chunk,
    )  # fmt: skip
    program = jax.jit(lambda h, w, t: loss(h, w, None, t)).lower(hidden, weight, target).compile()
    return lambda: jax.block_until_ready(program(hidden, weight, target))
