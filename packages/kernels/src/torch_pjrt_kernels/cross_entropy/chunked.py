"""Cross-entropy behind a linear layer, some classes at a time, with the gradients made along with the loss.

The softmax runs along with the chunks of classes (Milakov and Gimelshein, 2018); then each chunk's logits are
made once more, and become the gradients of the hidden states and of that part of the weight. That nothing is
kept for the backward but the gradients themselves is Hsu et al., "Liger Kernel" (2024); they go through the
tokens, where the weight's gradient is a sum over all chunks. Here each part of it is written once, in its own
dtype, and tokens that are spread over chips stay there. Logits, softmax and sums are in float32, in float64
for float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import rules

Array = jax.Array
State = tuple[Any, ...]

_LOGITS_BYTES = 2**26  # of a chunk
_LEAST_CLASSES = 256
_INT32 = np.dtype(np.int32)


def classes_of_chunk(n_tokens: int, n_classes: int) -> int:
    """How many classes a chunk has: a power of two, unless there is only one chunk."""
    fitting = 1 << (max(_LOGITS_BYTES // (4 * n_tokens), 1).bit_length() - 1)
    return min(max(fitting, _LEAST_CLASSES), n_classes)


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """The layer whose logits are made, `size` classes at a time. T tokens, W width, C classes of a chunk."""

    hidden_TW: Array
    weight: Array
    bias: Array | None
    target_T: Array
    soft_cap: float | None
    size: int

    @property
    def n_classes(self) -> int:
        return self.weight.shape[0]

    @property
    def n_chunks(self) -> int:
        return -(-self.n_classes // self.size)

    def first(self, chunk: Array) -> Array:
        """The first class of a chunk. The last chunk has some of the classes of that before it."""
        return lax.min(chunk * np.int32(self.size), np.int32(self.n_classes - self.size))

    def part(self, of_classes: Array, chunk: Array) -> Array:
        return lax.dynamic_slice_in_dim(of_classes, self.first(chunk), self.size, 0)

    def logits(self, chunk: Array) -> tuple[Array, Array | None]:
        """The logits, and what they grow with those before the soft cap (None: 1)."""
        logits = product(self.hidden_TW, self.part(self.weight, chunk), 1, 1)
        if self.bias is not None:
            bias = lax.expand_dims(self.part(self.bias, chunk), (0,))
            logits = logits + lax.convert_element_type(bias, logits.dtype)
        if self.soft_cap is None:
            return logits, None
        cap = np.asarray(self.soft_cap, logits.dtype)
        bent = lax.tanh(logits / cap)
        return bent * cap, 1 - bent * bent

    def hits(self, chunk: Array) -> Array:
        """Where a class is a token's target."""
        classes = self._classes(chunk)
        return classes == lax.expand_dims(self.target_T, (1,))

    def new(self, chunk: Array, logits_TC: Array, otherwise: float) -> Array:
        """The logits (or what has their shape), where no earlier chunk has the class."""
        if self.n_classes % self.size == 0:
            return logits_TC
        first = chunk * np.int32(self.size)
        others = lax.full_like(logits_TC, otherwise)
        return lax.select(self._classes(chunk) >= first, logits_TC, others)

    def _classes(self, chunk: Array) -> Array:
        shape = (self.hidden_TW.shape[0], self.size)
        return lax.broadcasted_iota(_INT32, shape, 1) + self.first(chunk)


def linear_cross_entropy(
    hidden: Array, weight: Array, bias: Array | None, target: Array, *,
    ignore_index: int, label_smoothing: float, soft_cap: float | None, mean: bool,
    with_gradients: bool, chunk: int | None = None,
) -> tuple[Array, Array | None, Array | None, Array | None]:  # fmt: skip
    """The loss, and its gradients with respect to hidden, weight and bias; None if they are not wanted.

    hidden   (T, W), weight: (classes, W), bias: (classes,), target: (T,). The gradients have their dtypes,
             the loss that in which sums run.
    chunk    how many classes at a time.
    """
    wide = rules.opmath(hidden.dtype)
    n_classes = weight.shape[0]
    size = classes_of_chunk(hidden.shape[0], n_classes) if chunk is None else min(chunk, n_classes)
    counts = target != np.asarray(ignore_index, target.dtype)
    share_T = lax.convert_element_type(counts, wide)
    if mean:
        share_T = share_T / lax.reduce_sum(share_T, (0,))
    layer = _Layer(hidden, weight, bias, lax.convert_element_type(target, _INT32), soft_cap, size)
    logsumexp_T, picked_T, total_T = _statistics(layer, wide)
    smooth = np.asarray(label_smoothing, wide)
    losses_T = logsumexp_T - (1 - smooth) * picked_T - smooth * total_T / n_classes
    # The loss of a token that does not count may be no number.
    losses_T = lax.select(share_T == 0, lax.full_like(losses_T, 0), losses_T * share_T)
    loss = lax.reduce_sum(losses_T, (0,))
    if not with_gradients:
        return loss, None, None, None
    return loss, *_gradients(layer, logsumexp_T, share_T, label_smoothing, wide)


def _statistics(layer: _Layer, wide: np.dtype) -> State:
    """Of each token the logsumexp of its logits, that of its target, and their sum."""

    def of_chunk(chunk: Array, state: State) -> State:
        greatest, total, picked, plain = state
        logits, _ = layer.logits(chunk)
        seen = layer.new(chunk, logits, -np.inf)
        greater = lax.max(greatest, lax.reduce_max(seen, (1,)))
        exponents = seen - lax.expand_dims(greater, (1,))
        total = total * lax.exp(greatest - greater) + lax.reduce_sum(lax.exp(exponents), (1,))
        zero = lax.full_like(logits, 0)
        there = layer.new(chunk, logits, 0)
        picked = picked + lax.reduce_sum(lax.select(layer.hits(chunk), there, zero), (1,))
        return greater, total, picked, plain + lax.reduce_sum(there, (1,))

    n = layer.hidden_TW.shape[0]
    state = (lax.full((n,), -np.inf, wide), *(lax.full((n,), 0, wide) for _ in range(3)))
    greatest, total, picked, plain = lax.fori_loop(
        np.int32(0), np.int32(layer.n_chunks), of_chunk, state
    )
    return greatest + lax.log(total), picked, plain


def _gradients(
    layer: _Layer, logsumexp_T: Array, share_T: Array, label_smoothing: float, wide: np.dtype
) -> tuple[Array, Array, Array | None]:
    weight, bias, hidden = layer.weight, layer.bias, layer.hidden_TW

    def of_chunk(chunk: Array, state: State) -> State:
        of_hidden, of_weight, *of_bias = state
        logits, growth = layer.logits(chunk)
        weights = lax.exp(logits - lax.expand_dims(logsumexp_T, (1,)))
        zero = lax.full_like(logits, 0)
        wanted = lax.select(layer.hits(chunk), lax.full_like(logits, 1 - label_smoothing), zero)
        of_logits = weights - wanted
        if label_smoothing:
            of_logits = of_logits - np.asarray(label_smoothing / layer.n_classes, wide)
        of_logits = of_logits * lax.expand_dims(share_T, (1,))
        if growth is not None:
            of_logits = of_logits * growth
        narrow = lax.convert_element_type(of_logits, weight.dtype)
        once = lax.convert_element_type(layer.new(chunk, of_logits, 0), weight.dtype)
        of_hidden = of_hidden + product(once, layer.part(weight, chunk), 1, 0)
        new = lax.convert_element_type(product(narrow, hidden, 0, 0), weight.dtype)
        first = layer.first(chunk)
        of_weight = lax.dynamic_update_slice_in_dim(of_weight, new, first, 0)
        if bias is not None:
            new = lax.convert_element_type(lax.reduce_sum(of_logits, (0,)), bias.dtype)
            of_bias = [lax.dynamic_update_slice_in_dim(of_bias[0], new, first, 0)]
        return of_hidden, of_weight, *of_bias

    state: State = (lax.full(hidden.shape, 0, wide), lax.full(weight.shape, 0, weight.dtype))
    if bias is not None:
        state = (*state, lax.full(bias.shape, 0, bias.dtype))
    of_hidden, of_weight, *of_bias = lax.fori_loop(
        np.int32(0), np.int32(layer.n_chunks), of_chunk, state
    )
    of_hidden = lax.convert_element_type(of_hidden, hidden.dtype)
    return of_hidden, of_weight, of_bias[0] if of_bias else None


def product(x: Array, y: Array, x_dim: int, y_dim: int) -> Array:
    """A product of matrices, summed as softmax is."""
    dims = (((x_dim,), (y_dim,)), ((), ()))
    return lax.dot_general(x, y, dims, preferred_element_type=rules.opmath(x.dtype))
