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
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax

from torch_pjrt.plugin import client, rules
from torch_pjrt_kernels.table import pair_of

Array = jax.Array
State = tuple[Any, ...]

_LOGITS_BYTES = 2**26  # of a chunk
_LEAST_CLASSES = 256
_INT32 = np.dtype(np.int32)


def entry_of(n_tokens: int, n_classes: int) -> str:
    """The name of a loss in the table of what was measured, for the chip at work."""
    return f"{client().chip.device_kind} loss {n_tokens}x{n_classes}"


def classes_of_chunk(n_tokens: int, n_classes: int, *, measured: bool = True) -> int:
    """How many classes a chunk has: a power of two, unless there is only one chunk.

    measured   whether a number counts that `python -m torch_pjrt_kernels tune --op loss` found.
    """
    found = pair_of(lambda: entry_of(n_tokens, n_classes)) if measured else None
    if found is not None:
        return min(found[0], n_classes)
    fitting = 1 << (max(_LOGITS_BYTES // (4 * max(n_tokens, 1)), 1).bit_length() - 1)
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
    class_weight: Array | None = None

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

    def weights_of_targets(self, wide: np.dtype) -> Array:
        """What each token counts, 1 where all count the same. That of an ignored target is arbitrary."""
        if self.class_weight is None:
            return lax.full(self.target_T.shape, 1, wide)
        at = lax.clamp(np.int32(0), self.target_T, np.int32(self.n_classes - 1))
        return lax.convert_element_type(self.class_weight[at], wide)

    def weighted(self, chunk: Array, logits_TC: Array) -> Array:
        """Each times the weight of its class."""
        if self.class_weight is None:
            return logits_TC
        return logits_TC * self.row(self.class_weight, chunk, logits_TC.dtype)

    def row(self, of_classes: Array, chunk: Array, dtype: np.dtype) -> Array:
        return lax.convert_element_type(lax.expand_dims(self.part(of_classes, chunk), (0,)), dtype)

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


class Losses(NamedTuple):
    """Of each token its loss, 0 where it is ignored, and the logsumexp of its logits.

    share    what a token's loss is multiplied by before all are added up: 0 where it is ignored.
    divisor  of a mean: how many tokens count, or the sum of their weights; else 1.
    """

    losses: Array
    logsumexp: Array
    share: Array
    divisor: Array


def linear_cross_entropy(
    hidden: Array, weight: Array, bias: Array | None, target: Array,
    class_weight: Array | None = None, *,
    ignore_index: int, label_smoothing: float, soft_cap: float | None, mean: bool,
    wanted: tuple[bool, bool, bool], chunk: int | None = None,
) -> tuple[Array, Array | None, Array | None, Array | None]:  # fmt: skip
    """The loss, and those of its gradients that are `wanted`, of hidden, weight and bias; else None.

    hidden   (T, W), weight: (classes, W), bias: (classes,), target: (T,). The gradients have their dtypes,
             the loss that in which sums run.
    class_weight   (classes,): what a token counts whose target it is.
    chunk    how many classes at a time.
    """
    layer = _layer(hidden, weight, bias, target, class_weight, soft_cap, chunk)
    found = _losses(layer, target, ignore_index, label_smoothing, mean=mean)
    loss = lax.reduce_sum(found.losses * found.share, (0,))
    if mean:  # of nothing there is none
        loss = lax.select(found.divisor == 0, lax.full_like(loss, np.nan), loss)
    of = _gradients(layer, found.logsumexp, found.share, label_smoothing, wanted)
    return loss, *of


def losses(
    hidden: Array, weight: Array, bias: Array | None, target: Array, class_weight: Array | None, *,
    ignore_index: int, label_smoothing: float, soft_cap: float | None,
) -> tuple[Array, Array]:  # fmt: skip
    """The loss of each token, and the logsumexp of its logits."""
    layer = _layer(hidden, weight, bias, target, class_weight, soft_cap)
    found = _losses(layer, target, ignore_index, label_smoothing, mean=False)
    return found.losses, found.logsumexp


def pulled_back(
    grad: Array, hidden: Array, weight: Array, bias: Array | None, target: Array,
    class_weight: Array | None, logsumexp: Array, *,
    ignore_index: int, label_smoothing: float, soft_cap: float | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:  # fmt: skip
    """The gradients of `losses` with respect to hidden, weight and bias, from that of each token's loss."""
    layer = _layer(hidden, weight, bias, target, class_weight, soft_cap)
    counts = target != np.asarray(ignore_index, target.dtype)
    share = lax.select(counts, grad, lax.full_like(grad, 0))
    return _gradients(layer, logsumexp, share, label_smoothing, wanted)


def _layer(
    hidden: Array, weight: Array, bias: Array | None, target: Array, class_weight: Array | None,
    soft_cap: float | None, chunk: int | None = None,
) -> _Layer:  # fmt: skip
    n_classes = weight.shape[0]
    size = classes_of_chunk(hidden.shape[0], n_classes) if chunk is None else min(chunk, n_classes)
    target = lax.convert_element_type(target, _INT32)
    return _Layer(hidden, weight, bias, target, soft_cap, size, class_weight)


def _losses(
    layer: _Layer, target: Array, ignore_index: int, label_smoothing: float, *, mean: bool
) -> Losses:
    wide = rules.opmath(layer.hidden_TW.dtype)
    logsumexp_T, picked_T, total_T = _statistics(layer, wide)
    of_target = layer.weights_of_targets(wide)
    smooth, each = (np.asarray(x, wide) for x in (label_smoothing, 1 / max(layer.n_classes, 1)))
    found = (1 - smooth) * of_target * (logsumexp_T - picked_T)
    if label_smoothing:
        found = found + smooth * each * (_sum_of_weights(layer, wide) * logsumexp_T - total_T)
    counts = target != np.asarray(ignore_index, target.dtype)
    zero = lax.full_like(found, 0)
    # The loss of a token that does not count may be no number.
    found = lax.select(counts, found, zero)
    divisor = lax.full((), 1, wide)
    if mean:
        divisor = lax.reduce_sum(lax.select(counts, of_target, zero), (0,))
    share_T = lax.select(counts, lax.broadcast(1 / divisor, counts.shape), zero)
    return Losses(found, logsumexp_T, share_T, divisor)


def _sum_of_weights(layer: _Layer, wide: np.dtype) -> Array:
    if layer.class_weight is None:
        return lax.full((), layer.n_classes, wide)
    return lax.reduce_sum(lax.convert_element_type(layer.class_weight, wide), (0,))


def _statistics(layer: _Layer, wide: np.dtype) -> State:
    """Of each token the logsumexp of its logits, that of its target, and the sum of all, weighted."""

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
        return greater, total, picked, plain + lax.reduce_sum(layer.weighted(chunk, there), (1,))

    n = layer.hidden_TW.shape[0]
    state = (lax.full((n,), -np.inf, wide), *(lax.full((n,), 0, wide) for _ in range(3)))
    greatest, total, picked, plain = lax.fori_loop(
        np.int32(0), np.int32(layer.n_chunks), of_chunk, state
    )
    return greatest + lax.log(total), picked, plain


def _gradients(
    layer: _Layer, logsumexp_T: Array, share_T: Array, label_smoothing: float,
    wanted: tuple[bool, bool, bool],
) -> tuple[Array | None, Array | None, Array | None]:  # fmt: skip
    """Of hidden, weight and bias, where they are wanted. `share_T` is the gradient of each token's loss."""
    weight, bias, hidden = layer.weight, layer.bias, layer.hidden_TW
    wide = rules.opmath(hidden.dtype)
    each = np.asarray(label_smoothing / max(layer.n_classes, 1), wide)
    of_target = layer.weights_of_targets(wide) * np.asarray(1 - label_smoothing, wide)
    in_all = of_target
    if label_smoothing:
        in_all = in_all + each * _sum_of_weights(layer, wide)

    def of_chunk(chunk: Array, state: State) -> State:
        of_hidden, of_weight, of_bias = state
        logits, growth = layer.logits(chunk)
        weights = lax.exp(logits - lax.expand_dims(logsumexp_T, (1,)))
        zero = lax.full_like(logits, 0)
        if label_smoothing or layer.class_weight is not None:
            weights = weights * lax.expand_dims(in_all, (1,))
        hit = lax.broadcast_in_dim(of_target, logits.shape, (0,))
        of_logits = weights - lax.select(layer.hits(chunk), hit, zero)
        if label_smoothing and layer.class_weight is not None:
            of_logits = of_logits - each * layer.row(layer.class_weight, chunk, wide)
        elif label_smoothing:
            of_logits = of_logits - each
        of_logits = of_logits * lax.expand_dims(share_T, (1,))
        if growth is not None:
            of_logits = of_logits * growth
        first = layer.first(chunk)
        if of_hidden is not None:
            once = lax.convert_element_type(layer.new(chunk, of_logits, 0), weight.dtype)
            of_hidden = of_hidden + product(once, layer.part(weight, chunk), 1, 0)
        if of_weight is not None:
            narrow = lax.convert_element_type(of_logits, weight.dtype)
            new = lax.convert_element_type(product(narrow, hidden, 0, 0), weight.dtype)
            of_weight = lax.dynamic_update_slice_in_dim(of_weight, new, first, 0)
        if of_bias is not None:
            new = lax.convert_element_type(lax.reduce_sum(of_logits, (0,)), of_bias.dtype)
            of_bias = lax.dynamic_update_slice_in_dim(of_bias, new, first, 0)
        return of_hidden, of_weight, of_bias

    state: State = (
        lax.full(hidden.shape, 0, wide) if wanted[0] else None,
        lax.full(weight.shape, 0, weight.dtype) if wanted[1] else None,
        lax.full(bias.shape, 0, bias.dtype) if wanted[2] and bias is not None else None,
    )
    if not any(x is not None for x in state):
        return None, None, None
    of_hidden, of_weight, of_bias = lax.fori_loop(
        np.int32(0), np.int32(layer.n_chunks), of_chunk, state
    )
    if of_hidden is not None:
        of_hidden = lax.convert_element_type(of_hidden, hidden.dtype)
    return of_hidden, of_weight, of_bias


def product(x: Array, y: Array, x_dim: int, y_dim: int) -> Array:
    """A product of matrices, summed as softmax is."""
    dims = (((x_dim,), (y_dim,)), ((), ()))
    return lax.dot_general(x, y, dims, preferred_element_type=rules.opmath(x.dtype))
