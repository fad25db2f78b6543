"""Lowerings of losses and their backwards.

What every rule here may assume and must keep:
    reduction   0 gives each element's loss, 1 their mean, 2 their sum.
    arithmetic  runs in float32 for float16 and bfloat16, and is rounded once at the end.
    target      in the nll losses a class, or `ignore_index`, which counts for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.embedding import taken_rows
from torch_pjrt.lowering.promote import as_dtype, opmath, promoted
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Integer, Num

Array = jax.Array

NONE, MEAN, SUM = 0, 1, 2

table = LoweringTable("loss")


def _wide(*operands: Array) -> tuple[list[Array], np.dtype]:
    """The operands in the dtype that arithmetic runs in, and the dtype of the result."""
    arrays, dtype = promoted(operands)
    return [as_dtype(x, opmath(dtype)) for x in arrays], dtype


def _reduced(losses: Array, reduction: int, dtype: np.dtype) -> Array:
    if reduction != NONE:
        count = losses.size
        losses = lax.reduce_sum(losses, tuple(range(losses.ndim)))
        losses = losses / count if reduction == MEAN else losses
    return as_dtype(losses, dtype)


def _backward(grad: Array, slope: Array, reduction: int, dtype: np.dtype) -> Array:
    """The gradient of the input: that of the result, times the slope of each element's loss."""
    grad = as_dtype(grad, slope.dtype)
    if reduction == MEAN:
        grad = grad / slope.size
    return as_dtype(grad * slope, dtype)


# nll loss: of each row the value of one class, dim 1 (or 0 where there are no rows)


def _picked(x: Array, target: Array) -> Array:
    """`x` at class `target`, which has the dims of `x` but for the class."""
    axis = min(1, x.ndim - 1)
    others = tuple(d for d in range(x.ndim) if d != axis)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=tuple(range(len(others))),
    )
    positions = lax.expand_dims(target, (target.ndim,))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(x, positions, numbers, (1,) * x.ndim, mode=mode)


@table.lowers(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    self: Float[Array, "samples classes *pixels"] | Float[Array, " classes"],
    target: Integer[Array, " samples *pixels"] | Integer[Array, ""],
    weight: Float[Array, " classes"] | None,
    reduction: int,
    ignore_index: int,
) -> tuple[Float[Array, " samples *pixels"] | Float[Array, ""], Float[Array, ""]]:
    """The loss, and the weight of all targets together: 0 where rows are not reduced."""
    wide = opmath(self.dtype)
    counts = target != ignore_index
    classes = lax.select(counts, target, lax.full_like(target, 0))
    if weight is None:
        weights = as_dtype(counts, wide)
    else:
        weights = as_dtype(taken_rows(weight, classes), wide)
        weights = lax.select(counts, weights, lax.full_like(weights, 0))
    losses = -as_dtype(_picked(self, classes), wide) * weights
    losses = lax.select(counts, losses, lax.full_like(losses, 0))
    if reduction == NONE and self.ndim > 1:
        return as_dtype(losses, self.dtype), lax.full((), 0, self.dtype)
    axes = tuple(range(target.ndim))
    total, total_weight = lax.reduce_sum(losses, axes), lax.reduce_sum(weights, axes)
    if reduction == MEAN:
        total = total / total_weight
    return as_dtype(total, self.dtype), as_dtype(total_weight, self.dtype)


@table.lowers(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad_output: Float[Array, " samples *pixels"] | Float[Array, ""],
    self: Float[Array, "samples classes *pixels"] | Float[Array, " classes"],
    target: Integer[Array, " samples *pixels"] | Integer[Array, ""],
    weight: Float[Array, " classes"] | None,
    reduction: int,
    ignore_index: int,
    total_weight: Float[Array, ""],
) -> Float[Array, "samples classes *pixels"] | Float[Array, " classes"]:
    """0 but for the class of each target: compared with a counter, it fuses with its reader."""
    wide = opmath(self.dtype)
    axis = min(1, self.ndim - 1)
    grad = -as_dtype(grad_output, wide)
    if reduction == MEAN:
        grad = grad / as_dtype(total_weight, wide)
    if weight is not None:
        classes = lax.max(target, lax.full_like(target, 0))
        grad = grad * as_dtype(taken_rows(weight, classes), wide)
    grad = jnp.broadcast_to(as_dtype(grad, self.dtype), target.shape)
    others = tuple(d for d in range(self.ndim) if d != axis)
    narrow = np.dtype(np.int32)
    class_of = lax.broadcasted_iota(narrow, self.shape, axis)
    # An ignored target is made one that no class has.
    chosen = lax.select(target == ignore_index, lax.full_like(target, -1), target)
    chosen = lax.broadcast_in_dim(as_dtype(chosen, narrow), self.shape, others)
    grad = lax.broadcast_in_dim(grad, self.shape, others)
    return lax.select(class_of == chosen, grad, lax.full_like(grad, 0))


# Losses of each element on its own


@table.lowers(aten.mse_loss.default)
def mse_loss(
    self: Num[Array, "*elements"], target: Num[Array, "*elements"], reduction: int = MEAN
) -> Num[Array, "*elements"] | Num[Array, ""]:
    (x, y), dtype = _wide(self, target)
    return _reduced(lax.square(x - y), reduction, dtype)


@table.lowers(aten.mse_loss_backward.default)
def mse_loss_backward(
    grad_output: Num[Array, ""] | Num[Array, "*elements"],
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int,
) -> Num[Array, "*elements"]:
    (x, y), dtype = _wide(self, target)
    return _backward(grad_output, 2 * (x - y), reduction, dtype)


@table.lowers(aten.smooth_l1_loss.default, static=("beta",))
def smooth_l1_loss(
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int = MEAN,
    beta: float = 1.0,
) -> Num[Array, "*elements"] | Num[Array, ""]:
    """Squared and divided by `2 * beta` nearer than `beta`, else the distance less half of it."""
    (x, y), dtype = _wide(self, target)
    distance = lax.abs(x - y)
    if beta > 0:
        near = 0.5 * lax.square(distance) / beta
        distance = lax.select(distance < beta, near, distance - 0.5 * beta)
    return _reduced(distance, reduction, dtype)


@table.lowers(aten.smooth_l1_loss_backward.default, static=("beta",))
def smooth_l1_loss_backward(
    grad_output: Num[Array, ""] | Num[Array, "*elements"],
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int,
    beta: float,
) -> Num[Array, "*elements"]:
    (x, y), dtype = _wide(self, target)
    slope = lax.sign(x - y) if beta == 0 else lax.clamp(_like(-1, x), (x - y) / beta, _like(1, x))
    return _backward(grad_output, slope, reduction, dtype)


def _like(value: float, x: Array) -> Array:
    return as_dtype(value, x.dtype)


@table.lowers(aten.huber_loss.default)
def huber_loss(
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int = MEAN,
    delta: Any = 1.0,
) -> Num[Array, "*elements"] | Num[Array, ""]:
    (x, y), dtype = _wide(self, target)
    distance, delta = lax.abs(x - y), as_dtype(delta, x.dtype)
    near, far = 0.5 * lax.square(distance), delta * (distance - 0.5 * delta)
    return _reduced(lax.select(distance <= delta, near, far), reduction, dtype)


@table.lowers(aten.huber_loss_backward.default)
def huber_loss_backward(
    grad_output: Num[Array, ""] | Num[Array, "*elements"],
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int,
    delta: Any,
) -> Num[Array, "*elements"]:
    (x, y), dtype = _wide(self, target)
    delta = as_dtype(delta, x.dtype)
    return _backward(grad_output, lax.clamp(-delta, x - y, delta), reduction, dtype)


@table.lowers(aten.soft_margin_loss.default)
def soft_margin_loss(
    self: Num[Array, "*elements"], target: Num[Array, "*elements"], reduction: int = MEAN
) -> Num[Array, "*elements"] | Num[Array, ""]:
    (x, y), dtype = _wide(self, target)
    return _reduced(lax.log1p(lax.exp(-y * x)), reduction, dtype)


@table.lowers(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(
    grad_output: Num[Array, ""] | Num[Array, "*elements"],
    self: Num[Array, "*elements"],
    target: Num[Array, "*elements"],
    reduction: int,
) -> Num[Array, "*elements"]:
    (x, y), dtype = _wide(self, target)
    return _backward(grad_output, -y * lax.logistic(-y * x), reduction, dtype)


# Binary cross entropy

LEAST_LOG = -100  # PyTorch keeps the logarithm of 0 finite
LEAST_SLOPE = 1e-12


@table.lowers(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    self: Float[Array, "*elements"],
    target: Float[Array, "*elements"],
    weight: Float[Array, "*#elements"] | None = None,
    reduction: int = MEAN,
) -> Float[Array, "*elements"] | Float[Array, ""]:
    (x, y), dtype = _wide(self, target)
    least = lax.full_like(x, LEAST_LOG)
    losses = (y - 1) * lax.max(lax.log1p(-x), least) - y * lax.max(lax.log(x), least)
    if weight is not None:
        losses = losses * as_dtype(weight, losses.dtype)
    return _reduced(losses, reduction, dtype)


@table.lowers(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    grad_output: Float[Array, ""] | Float[Array, "*elements"],
    self: Float[Array, "*elements"],
    target: Float[Array, "*elements"],
    weight: Float[Array, "*#elements"] | None = None,
    reduction: int = MEAN,
) -> Float[Array, "*elements"]:
    (x, y), dtype = _wide(self, target)
    slope = (x - y) / lax.max((1 - x) * x, lax.full_like(x, LEAST_SLOPE))
    if weight is not None:
        slope = slope * as_dtype(weight, slope.dtype)
    return _backward(grad_output, slope, reduction, dtype)


@table.lowers(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: Float[Array, "*elements"],
    target: Float[Array, "*elements"],
    weight: Float[Array, "*#elements"] | None = None,
    pos_weight: Float[Array, "*#elements"] | None = None,
    reduction: int = MEAN,
) -> Float[Array, "*elements"] | Float[Array, ""]:
    """`(1 - y) * x - log_sigmoid(x)`, the last term weighed by `pos_weight` where y is 1."""
    (x, y), dtype = _wide(self, target)
    missed = jax.nn.softplus(-x)
    if pos_weight is not None:
        missed = missed * (1 + (as_dtype(pos_weight, x.dtype) - 1) * y)
    losses = (1 - y) * x + missed
    if weight is not None:
        losses = losses * as_dtype(weight, losses.dtype)
    return _reduced(losses, reduction, dtype)
