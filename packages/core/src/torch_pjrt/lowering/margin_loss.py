"""Lowerings of the losses that demand a margin between classes, and their backwards.

What every rule here may assume and must keep:
    self        one row of class values for each sample, or one row alone.
    reduction   0 gives each sample's loss, 1 their mean, 2 their sum.
    arithmetic  runs in float32 for float16 and bfloat16, and is rounded once at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.lowering.dims import along
from torch_pjrt.lowering.loss import MEAN, NONE
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Float, Integer

Array = jax.Array

table = LoweringTable("margin_loss")


def _rows(x: Array, target: Array) -> tuple[Array, Array]:
    """Both with a dim of samples; values in the dtype that arithmetic runs in."""
    wide = as_dtype(x, opmath(x.dtype))
    classes = x.shape[-1] if x.ndim else 1
    samples = x.shape[0] if x.ndim == 2 else 1
    return lax.reshape(wide, (samples, classes)), lax.reshape(
        target, (samples, target.size // samples if samples else 1)
    )


def _reduced(losses: Array, reduction: int, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    if reduction != NONE:
        total = lax.reduce_sum(losses, (0,))
        return as_dtype(total / losses.size if reduction == MEAN else total, dtype)
    return as_dtype(lax.reshape(losses, shape), dtype)


def _backward(grad_output: Array, slope: Array, reduction: int, self: Array) -> Array:
    """The gradient of `self`: that of each sample's loss times its slope."""
    grad = as_dtype(grad_output, slope.dtype)
    grad = lax.reshape(grad, (grad.size, 1))
    if reduction == MEAN:
        grad = grad / len(slope)
    return as_dtype(lax.reshape(grad * slope, self.shape), self.dtype)


# One class is right


def _excess(x: Array, target: Array, margin: Any) -> tuple[Array, Array, Array]:
    """By how much each class is too near to the right one, 0 if it is not; which are the right ones."""
    right = along(x.shape, 1) == target
    value = jnp.take_along_axis(x, target, 1, mode="clip")
    excess = jnp.maximum(as_dtype(margin, x.dtype) - value + x, 0)
    return lax.select(right, lax.full_like(x, 0), excess), right, value


@table.lowers(aten.multi_margin_loss.default, static=("p",))
def multi_margin_loss(
    self: Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
    target: Integer[Array, " samples"] | Integer[Array, ""],
    p: Any = 1,
    margin: Any = 1,
    weight: Float[Array, " classes"] | None = None,
    reduction: int = MEAN,
) -> Float[Array, " samples"] | Float[Array, ""]:
    x, classes = _rows(self, target)
    losses, _, _ = _excess(x, classes, margin)
    if p == 2:
        losses = lax.square(losses)
    if weight is not None:
        losses = losses * as_dtype(weight, x.dtype)[classes]
    losses = lax.reduce_sum(losses, (1,)) / x.shape[1]
    return _reduced(losses, reduction, target.shape, self.dtype)


@table.lowers(aten.multi_margin_loss_backward.default, static=("p",))
def multi_margin_loss_backward(
    grad_output: Float[Array, " samples"] | Float[Array, ""],
    self: Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
    target: Integer[Array, " samples"] | Integer[Array, ""],
    p: Any,
    margin: Any,
    weight: Float[Array, " classes"] | None = None,
    reduction: int = MEAN,
) -> Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""]:
    x, classes = _rows(self, target)
    excess, right, _ = _excess(x, classes, margin)
    slope = 2 * excess if p == 2 else as_dtype(excess > 0, x.dtype)
    if weight is not None:
        slope = slope * as_dtype(weight, x.dtype)[classes]
    slope = slope / x.shape[1]
    others = jnp.broadcast_to(-jnp.sum(slope, 1, keepdims=True), slope.shape)
    return _backward(grad_output, lax.select(right, others, slope), reduction, self)


# Several classes are right


def _listed(target: Array) -> Array:
    """Which entries of `target` count: those before the first negative one."""
    return lax.cummin(as_dtype(target >= 0, np.dtype(np.int32)), 1) > 0


def _too_near(x: Array, target: Array, is_target: Array) -> Array:
    """By how much a class that is not right (last dim) is too near to each of the listed (dim 1)."""
    value = jnp.take_along_axis(x, jnp.maximum(target, 0), 1, mode="clip")
    excess = jnp.maximum(1 - value[:, :, None] + x[:, None, :], 0)
    return jnp.where(_listed(target)[:, :, None] & ~is_target[:, None, :], excess, 0)


@table.lowers(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    self: Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
    target: Integer[Array, "samples classes"] | Integer[Array, " classes"] | Integer[Array, ""],
    reduction: int,
) -> tuple[
    Float[Array, " samples"] | Float[Array, ""],
    Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
]:
    """The loss, and 1 for each right class. A class listed twice counts twice."""
    x, classes = _rows(self, target)
    here = classes[:, :, None] == along((*classes.shape, x.shape[1]), 2)
    is_target = jnp.any(here & _listed(classes)[:, :, None], 1)
    losses = jnp.sum(_too_near(x, classes, is_target), (1, 2)) / x.shape[1]
    shape = target.shape[:1] if target.ndim == 2 else ()
    return (
        _reduced(losses, reduction, shape, self.dtype),
        as_dtype(lax.reshape(is_target, target.shape), self.dtype),
    )


@table.lowers(aten.multilabel_margin_loss_backward.default)
def multilabel_margin_loss_backward(
    grad_output: Float[Array, " samples"] | Float[Array, ""],
    self: Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
    target: Integer[Array, "samples classes"] | Integer[Array, " classes"] | Integer[Array, ""],
    reduction: int,
    is_target: Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""],
) -> Float[Array, "samples classes"] | Float[Array, " classes"] | Float[Array, ""]:
    x, classes = _rows(self, target)
    active = _too_near(x, classes, lax.reshape(is_target, x.shape) != 0) > 0
    active = as_dtype(active, x.dtype)
    counts = jnp.sum(active, 2)  # of each listed class
    here = classes[:, :, None] == along((*classes.shape, x.shape[1]), 2)
    slope = jnp.sum(active, 1) - jnp.sum(jnp.where(here, counts[:, :, None], 0), 1)
    return _backward(grad_output, slope / x.shape[1], reduction, self)
