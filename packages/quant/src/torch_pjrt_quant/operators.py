"""Products with weights of few bits as PyTorch's operators, `torch.ops.torch_pjrt_quant.*`.

Their Python bodies are for the CPU, and say what they compute: `x @ weight.T + bias` with the weight that
`packing.py` reads. On the device they have rules (`rules.py`). Gradients reach `x` and `bias`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_pjrt.extend import lowers
from torch_pjrt_quant import packing, rules


def _operator(name: str) -> Callable[[Any], Any]:
    return torch.library.custom_op(f"torch_pjrt_quant::{name}", mutates_args=())


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = torch.nn.functional.linear(x.float(), weight, None if bias is None else bias.float())
    return y.to(x.dtype)


def _dynamic(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    largest: float,
    narrowed: Callable[[Tensor], Tensor],
) -> Tensor:
    """`largest` is the largest number that `narrowed` rows may have."""
    wide = x.float()
    factor = (wide.abs().amax(-1, keepdim=True) / largest).clamp(min=1e-12)
    y = torch.nn.functional.linear(narrowed(wide / factor), weight.float())
    y = y * factor * scale.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


@_operator("linear_int8")
def linear_int8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` by a weight of int8 with a scale for each row: (*, columns) x (rows, columns) -> (*, rows)."""
    return _linear(x, packing.from_int8(weight, scale), bias)


@_operator("linear_int8_dynamic")
def linear_int8_dynamic(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The same, and each row of `x` becomes int8 with the scale `max(abs(row)) / 127`: integer products."""
    return _dynamic(x, weight, scale, bias, 127, lambda rows: rows.round().clamp(-127, 127))


@_operator("linear_int4")
def linear_int4(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`x` by packed numbers of four bits (rows x columns / 2) with scales and zeros (rows x groups)."""
    return _linear(x, packing.from_int4(weight, scale, zero), bias)


@_operator("linear_nf4")
def linear_nf4(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` by packed numbers of NF4 with scales (rows x groups)."""
    return _linear(x, packing.from_nf4(weight, scale), bias)


@_operator("linear_float8")
def linear_float8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` by a weight of float8_e4m3fn with a scale for each row."""
    return _linear(x, packing.from_int8(weight, scale), bias)


@_operator("linear_float8_dynamic")
def linear_float8_dynamic(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The same, and each row of `x` becomes float8 with the scale `max(abs(row)) / 448`."""
    return _dynamic(
        x,
        weight,
        scale,
        bias,
        packing.FLOAT8_MAX,
        lambda rows: rows.to(torch.float8_e4m3fn).float(),
    )


@_operator("gradient_int8")
def gradient_int8(gradient: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The gradient of `x`: (*, rows) -> (*, columns). Of float8, too."""
    return (gradient.float() @ packing.from_int8(weight, scale)).to(gradient.dtype)


@_operator("gradient_int4")
def gradient_int4(
    gradient: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    """The gradient of `x`."""
    return (gradient.float() @ packing.from_int4(weight, scale, zero)).to(gradient.dtype)


@_operator("gradient_nf4")
def gradient_nf4(gradient: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """The gradient of `x`."""
    return (gradient.float() @ packing.from_nf4(weight, scale)).to(gradient.dtype)


def _rows(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _columns(gradient: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], weight.shape[1])


def _unpacked_columns(gradient: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], 2 * weight.shape[1])


#   operator, rule, shape of the result, operator of the gradient, how many arguments that takes of it
ROWS: list[tuple[Any, Any, Any, Any, int]] = [
    (linear_int8, rules.linear_int8, _rows, gradient_int8, 2),
    (linear_int8_dynamic, rules.linear_int8_dynamic, _rows, gradient_int8, 2),
    (linear_int4, rules.linear_int4, _rows, gradient_int4, 3),
    (linear_nf4, rules.linear_nf4, _rows, gradient_nf4, 2),
    (linear_float8, rules.linear_float8, _rows, gradient_int8, 2),
    (linear_float8_dynamic, rules.linear_float8_dynamic, _rows, gradient_int8, 2),
    (gradient_int8, rules.gradient_int8, _columns, None, 0),
    (gradient_int4, rules.gradient_int4, _unpacked_columns, None, 0),
    (gradient_nf4, rules.gradient_nf4, _unpacked_columns, None, 0),
]


def _differentiable(operator: Any, gradient_of: Any, n_weights: int) -> None:
    """Gradients of `x` and of the bias, the last argument. (What is dynamic passes them straight through.)"""

    def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.n_inputs, ctx.bias = len(inputs), inputs[-1]
        ctx.weights = inputs[1 : 1 + n_weights]

    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        results: list[Any] = [None] * ctx.n_inputs
        if ctx.needs_input_grad[0]:
            results[0] = gradient_of(gradient, *ctx.weights)
        if ctx.needs_input_grad[-1]:
            rows = gradient.reshape(-1, gradient.shape[-1])
            results[-1] = rows.sum(0).to(ctx.bias.dtype)
        return tuple(results)

    operator.register_autograd(backward, setup_context=keep)


for _op, _rule, _shape, _gradient_of, _n in ROWS:
    _op.register_fake(_shape)
    lowers(_op._opoverload)(_rule)
    if _gradient_of is not None:
        _differentiable(_op, _gradient_of, _n)
