"""Lowerings of activation functions and of their derivatives.

Every rule computes half inputs in float32 and rounds once. A backward rule is called with the
gradient of the result first and gives the gradient of the input.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from jax import lax

from torch_pjrt.lowering.cast import cast
from torch_pjrt.lowering.pointwise.rows import (
    constant,
    filled,
    rounded,
    select,
    wide_operands,
)
from torch_pjrt.lowering.promote import Array
from torch_pjrt.lowering.table import LoweringTable, Rule
from torch_pjrt.lowering.versions import SOFTSHRINK_ROUNDS_LAMBD
from torch_pjrt.overloads import aten

table = LoweringTable("pointwise.activation")


def _lowers(op: Any, tensors: int = 1) -> Callable[[Rule], Rule]:
    """Add a rule whose first arguments are tensors, which it gets in one dtype, half widened.

    Numbers among the other arguments are for the rule to convert with `cast`.
    """

    def register(compute: Rule) -> Rule:
        @functools.wraps(compute)
        def rule(*args: Any, **kwargs: Any) -> Array:
            arrays, dtype = wide_operands(args[:tensors])
            return rounded(compute(*arrays, *args[tensors:], **kwargs), dtype)

        table.add(op, rule)
        return compute

    return register


def _cdf(x: Array) -> Array:
    """The standard normal distribution function, as the CPU computes it.

    By `erf`, which XLA makes part of a fusion; `erfc` costs it four passes over memory.
    """
    half, root, one = constant(0.5, x), constant(math.sqrt(0.5), x), constant(1, x)
    return lax.mul(half, lax.add(one, lax.erf(lax.mul(x, root))))


def _tanh_of_cubic(x: Array) -> Array:
    scale, cubic = constant(math.sqrt(2 / math.pi), x), constant(0.044715, x)
    inner = lax.add(x, lax.mul(cubic, lax.mul(lax.mul(x, x), x)))
    return lax.tanh(lax.mul(scale, inner))


@_lowers(aten.gelu.default)
def gelu(x: Array, *, approximate: str = "none") -> Array:
    if approximate == "none":
        return lax.mul(x, _cdf(x))
    half, one = constant(0.5, x), constant(1, x)
    return lax.mul(lax.mul(half, x), lax.add(one, _tanh_of_cubic(x)))


@_lowers(aten.gelu_backward.default, tensors=2)
def gelu_backward(grad: Array, x: Array, *, approximate: str = "none") -> Array:
    one, half = constant(1, x), constant(0.5, x)
    square = lax.mul(x, x)
    if approximate == "none":
        density = lax.mul(
            lax.exp(lax.mul(square, constant(-0.5, x))), constant(1 / math.sqrt(2 * math.pi), x)
        )
        return lax.mul(grad, lax.add(_cdf(x), lax.mul(x, density)))
    tanh = _tanh_of_cubic(x)
    scale = math.sqrt(2 / math.pi)
    inner = lax.add(constant(scale, x), lax.mul(constant(3 * 0.044715 * scale, x), square))
    slope = lax.mul(lax.sub(one, lax.mul(tanh, tanh)), inner)
    result = lax.add(lax.add(one, tanh), lax.mul(x, slope))
    return lax.mul(grad, lax.mul(half, result))


@_lowers(aten.silu.default)
def silu(x: Array) -> Array:
    return lax.mul(x, lax.logistic(x))


@_lowers(aten.silu_backward.default, tensors=2)
def silu_backward(grad: Array, x: Array) -> Array:
    one, sigmoid = constant(1, x), lax.logistic(x)
    return lax.mul(grad, lax.mul(sigmoid, lax.add(one, lax.mul(x, lax.sub(one, sigmoid)))))


def _conj(x: Array) -> Array:
    return lax.conj(x) if x.dtype.kind == "c" else x


@_lowers(aten.sigmoid_backward.default, tensors=2)
def sigmoid_backward(grad: Array, output: Array) -> Array:
    rest = lax.sub(constant(1, output), output)
    return lax.mul(lax.mul(grad, _conj(rest)), _conj(output))


@_lowers(aten.tanh_backward.default, tensors=2)
def tanh_backward(grad: Array, output: Array) -> Array:
    return lax.mul(grad, _conj(lax.sub(constant(1, output), lax.mul(output, output))))


@_lowers(aten.threshold.default)
def threshold(x: Array, threshold: Any, value: Any) -> Array:
    """`value` where `x <= threshold`, so nan stays."""
    return select(lax.le(x, cast(threshold, x.dtype)), cast(value, x.dtype), x)


@_lowers(aten.threshold_backward.default, tensors=2)
def threshold_backward(grad: Array, x: Array, threshold: Any) -> Array:
    return select(lax.le(x, cast(threshold, x.dtype)), constant(0, grad), grad)


@_lowers(aten.hardtanh.default)
def hardtanh(x: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    return lax.min(lax.max(x, cast(min_val, x.dtype)), cast(max_val, x.dtype))


@_lowers(aten.hardtanh_backward.default, tensors=2)
def hardtanh_backward(grad: Array, x: Array, min_val: Any, max_val: Any) -> Array:
    """0 at both ends and of nan."""
    inside = lax.bitwise_and(lax.gt(x, cast(min_val, x.dtype)), lax.lt(x, cast(max_val, x.dtype)))
    return select(inside, grad, constant(0, grad))


@_lowers(aten.leaky_relu.default)
def leaky_relu(x: Array, negative_slope: Any = 0.01) -> Array:
    return select(lax.gt(x, constant(0, x)), x, lax.mul(x, cast(negative_slope, x.dtype)))


@_lowers(aten.leaky_relu_backward.default, tensors=2)
def leaky_relu_backward(grad: Array, x: Array, negative_slope: Any, self_is_result: bool) -> Array:
    """The sign of the result is the sign of the input, so either may be given."""
    return select(lax.gt(x, constant(0, x)), grad, lax.mul(grad, cast(negative_slope, x.dtype)))


@_lowers(aten._prelu_kernel.default, tensors=2)
def prelu(x: Array, weight: Array) -> Array:
    return select(lax.gt(x, constant(0, x)), x, lax.mul(weight, x))


@table.lowers(aten._prelu_kernel_backward.default)
def prelu_backward(grad: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """Gradients of the input and of the weight, the latter not yet summed."""
    (g, wide, w), dtype = wide_operands([grad, x, weight])
    zero = constant(0, wide)
    positive = lax.gt(wide, zero)
    of_input = select(positive, g, lax.mul(w, g))
    of_weight = select(positive, zero, lax.mul(wide, g))
    return rounded(of_input, dtype), rounded(of_weight, dtype)


@_lowers(aten.elu.default)
def elu(x: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    alpha, scale, input_scale = (cast(c, x.dtype) for c in (alpha, scale, input_scale))
    below = lax.mul(lax.mul(alpha, scale), lax.expm1(lax.mul(x, input_scale)))
    return select(lax.le(x, constant(0, x)), below, lax.mul(x, scale))


@_lowers(aten.celu.default)
def celu(x: Array, alpha: Any = 1.0) -> Array:
    alpha = cast(alpha, x.dtype)
    below = lax.mul(alpha, lax.expm1(lax.div(x, alpha)))
    return select(lax.le(x, constant(0, x)), below, x)


@table.lowers(aten.elu_backward.default)
def elu_backward(
    grad: Array, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Array
) -> Array:
    (g, x), dtype = wide_operands([grad, self_or_result])
    alpha, scale, input_scale = (cast(c, x.dtype) for c in (alpha, scale, input_scale))
    below = lax.mul(g, input_scale)
    if is_result:
        below = lax.mul(below, lax.add(x, lax.mul(alpha, scale)))
    else:
        below = lax.mul(lax.mul(below, lax.mul(alpha, scale)), lax.exp(lax.mul(x, input_scale)))
    return rounded(select(lax.gt(x, constant(0, x)), lax.mul(g, scale), below), dtype)


@_lowers(aten.softplus.default)
def softplus(x: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    """log(1 + exp(beta * x)) / beta; `x` itself where `beta * x > threshold`."""
    beta, threshold = cast(beta, x.dtype), cast(threshold, x.dtype)
    scaled = lax.mul(x, beta)
    linear = lax.gt(scaled, threshold)
    curved = lax.div(lax.log1p(lax.exp(scaled)), beta)
    return select(linear, x, curved)


@_lowers(aten.softplus_backward.default, tensors=2)
def softplus_backward(grad: Array, x: Array, beta: Any, threshold: Any) -> Array:
    scaled = lax.mul(x, cast(beta, x.dtype))
    linear = lax.gt(scaled, cast(threshold, x.dtype))
    return select(linear, grad, lax.mul(grad, lax.logistic(scaled)))


def _sixth(x: Array) -> Array:
    return lax.mul(x, constant(1 / 6, x))


def _relu6_of_shifted(x: Array) -> Array:
    shifted = lax.add(x, constant(3, x))
    return lax.min(lax.max(shifted, constant(0, x)), constant(6, x))


@_lowers(aten.hardsigmoid.default)
def hardsigmoid(x: Array) -> Array:
    return _sixth(_relu6_of_shifted(x))


@_lowers(aten.hardsigmoid_backward.default, tensors=2)
def hardsigmoid_backward(grad: Array, x: Array) -> Array:
    inside = lax.lt(lax.abs(x), constant(3, x))
    return select(inside, _sixth(grad), constant(0, grad))


@_lowers(aten.hardswish.default)
def hardswish(x: Array) -> Array:
    return _sixth(lax.mul(x, _relu6_of_shifted(x)))


@_lowers(aten.hardswish_backward.default, tensors=2)
def hardswish_backward(grad: Array, x: Array) -> Array:
    slope = lax.add(lax.mul(x, constant(1 / 3, x)), constant(0.5, x))
    middle = select(lax.ge(x, constant(3, x)), grad, lax.mul(grad, slope))
    return select(lax.le(x, constant(-3, x)), constant(0, grad), middle)


def _softplus_of(x: Array) -> Array:
    """log(1 + exp(x)), finite wherever `x` is."""
    return lax.add(lax.max(x, constant(0, x)), lax.log1p(lax.exp(lax.neg(lax.abs(x)))))


@_lowers(aten.mish.default)
def mish(x: Array) -> Array:
    return lax.mul(x, lax.tanh(_softplus_of(x)))


@_lowers(aten.mish_backward.default, tensors=2)
def mish_backward(grad: Array, x: Array) -> Array:
    tanh, sigmoid = lax.tanh(_softplus_of(x)), lax.logistic(x)
    slope = lax.mul(sigmoid, lax.sub(constant(1, x), lax.mul(tanh, tanh)))
    return lax.mul(grad, lax.add(tanh, lax.mul(x, slope)))


@table.lowers(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Array) -> tuple[Array, Array]:
    """log(sigmoid(x)), and exp(-abs(x)) for the derivative."""
    (wide,), dtype = wide_operands([x])
    buffer = lax.exp(lax.neg(lax.abs(wide)))
    output = lax.sub(lax.min(wide, constant(0, wide)), lax.log1p(buffer))
    return rounded(output, dtype), rounded(buffer, dtype)


@_lowers(aten.log_sigmoid_backward.default, tensors=2)
def log_sigmoid_backward(grad: Array, x: Array, buffer: Array) -> Array:
    """The buffer is not read: it is empty on some devices, and sigmoid(-x) is as cheap."""
    return lax.mul(grad, lax.logistic(lax.neg(x)))


@_lowers(aten.hardshrink.default)
def hardshrink(x: Array, lambd: Any = 0.5) -> Array:
    """0 where `-lambd <= x <= lambd`."""
    lambd = cast(lambd, x.dtype)
    inside = lax.bitwise_and(lax.ge(x, lax.neg(lambd)), lax.le(x, lambd))
    return select(inside, constant(0, x), x)


@table.lowers(aten.softshrink.default)
def softshrink(x: Array, lambd: Any = 0.5) -> Array:
    """Drawn towards 0 by `lambd`, and no further."""
    (x, lambd), dtype = wide_operands([x, lambd], exact_numbers=not SOFTSHRINK_ROUNDS_LAMBD)
    above, below = lax.gt(x, lambd), lax.lt(x, lax.neg(lambd))
    zero = lax.mul(x, constant(0, x))  # nan stays nan
    drawn = select(above, lax.sub(x, lambd), select(below, lax.add(x, lambd), zero))
    return rounded(drawn, dtype)


@_lowers(aten.hardshrink_backward.default, tensors=2)
@_lowers(aten.softshrink_backward.default, tensors=2)
def shrink_backward(grad: Array, x: Array, lambd: Any) -> Array:
    """0 where `-lambd <= x <= lambd`, and of nan."""
    lambd = cast(lambd, x.dtype)
    outside = lax.bitwise_or(lax.lt(x, lax.neg(lambd)), lax.gt(x, lambd))
    return select(outside, grad, constant(0, grad))


@_lowers(aten.glu.default)
def glu(x: Array, dim: int = -1) -> Array:
    """The first half along `dim`, gated by the second."""
    value, gate = _halves(x, dim)
    return lax.mul(value, lax.logistic(gate))


def _halves(x: Array, dim: int) -> tuple[Array, Array]:
    dim %= x.ndim
    middle = x.shape[dim] // 2
    return lax.slice_in_dim(x, 0, middle, axis=dim), lax.slice_in_dim(x, middle, None, axis=dim)


@table.lowers(aten.glu_backward.default)
def glu_backward(grad: Array, x: Array, dim: int) -> Array:
    dtype = x.dtype
    (g,), _ = wide_operands([grad])
    (wide,), _ = wide_operands([x])
    value, gate = _halves(wide, dim)
    sigmoid = lax.logistic(gate)
    of_value = lax.mul(g, sigmoid)
    of_gate = lax.mul(lax.mul(of_value, value), lax.sub(constant(1, gate), sigmoid))
    return rounded(lax.concatenate([of_value, of_gate], dim % x.ndim), dtype)


@table.lowers(aten.rrelu_with_noise_backward.default)
def rrelu_with_noise_backward(
    grad: Array,
    x: Array,
    noise: Array,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> Array:
    """In training the noise is the slope that each element had; else the slope is the mean one."""
    (g, wide, slope), dtype = wide_operands([grad, x, noise])
    if training:
        return rounded(lax.mul(g, slope), dtype)
    mean = lax.mul(lax.add(cast(lower, wide.dtype), cast(upper, wide.dtype)), constant(0.5, wide))
    g, wide = filled([g, wide])
    return rounded(select(lax.gt(wide, constant(0, wide)), g, lax.mul(g, mean)), dtype)
