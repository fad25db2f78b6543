"""Linear layers that train with products of float8 (Micikevicius et al., "FP8 Formats", 2022).

forward    x and weight in float8_e4m3fn
backward   the gradient in float8_e5m2, which reaches further; x and weight as they were in forward

Each tensor has one scale, measured in each step: `max(abs(x)) / largest number of its kind`. What the
backward keeps of an input are its numbers of 8 bits. GPUs multiply float8 by itself; TPUs and CPUs widen it,
which gives the same numbers and is no faster than bfloat16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_pjrt.extend import lowers
from torch_pjrt.plugin import client
from torch_pjrt_quant import rules
from torch_pjrt_quant.replacing import linear_at, linear_layers, put

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LEAST = 1e-12

M = TypeVar("M", bound=torch.nn.Module)


@torch.library.custom_op("torch_pjrt_quant::product_float8", mutates_args=())
def product_float8(x: Tensor, other: Tensor, scale: Tensor) -> Tensor:
    """`x @ other.T * scale` of float8 (rows x inner, columns x inner), added up in float32."""
    return (x.float() @ other.float().T) * scale


@product_float8.register_fake
def _(x: Tensor, other: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], other.shape[0], dtype=torch.float32)


lowers(product_float8._opoverload)(rules.product_float8)


def to_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of float8 and their one scale (float32, 0-d): `x` is about `numbers * scale`."""
    largest = torch.finfo(dtype).max
    wide = x.float()
    scale = (wide.abs().amax() / largest).clamp(min=LEAST)
    return (wide / scale).clamp(-largest, largest).to(dtype), scale


class _Product(torch.autograd.Function):
    """`x @ weight.T`: (rows, columns) by (outputs, columns)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        small, scale = to_float8(x, E4M3)
        weights, weight_scale = to_float8(weight, E4M3)
        ctx.save_for_backward(small, scale, weights, weight_scale)
        ctx.dtypes = x.dtype, weight.dtype
        return product_float8(small, weights, scale * weight_scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        small, scale, weights, weight_scale = ctx.saved_tensors
        numbers, gradient_scale = to_float8(gradients[0], E5M2)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = product_float8(numbers, weights.T.contiguous(), gradient_scale * weight_scale)
            of_x = of_x.to(ctx.dtypes[0])
        if ctx.needs_input_grad[1]:
            turned = numbers.T.contiguous(), small.T.contiguous()
            of_weight = product_float8(*turned, gradient_scale * scale).to(ctx.dtypes[1])
        return of_x, of_weight


class Float8TrainingLinear(torch.nn.Linear):
    """A linear layer with a weight as it was, whose products take float8, forward and backward.

    `state_dict` is that of `torch.nn.Linear`. The gradient of the bias is not rounded.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        rows = input.reshape(-1, self.in_features)
        y = _Product.apply(rows, self.weight).unflatten(0, input.shape[:-1])  # type: ignore[union-attr]
        return y if self.bias is None else y + self.bias.to(y.dtype)


def float8_training_(model: M, which: Callable[[str, torch.nn.Linear], bool] | None = None) -> M:
    """Put layers that train with products of float8 in the place of linear layers; they share parameters.

    which     of a layer's name and the layer, whether it is changed; all are, unless it says otherwise. First
              and last layers are often left out.

    Returns the module. A `UserWarning` says so where the device that is there does not multiply float8: the
    numbers are the same then, and nothing is faster. Raises `ValueError` where no layer is changed.
    """
    for names in linear_layers(model, which):
        put(model, names, _with_float8(linear_at(model, names[0])))
    platform = _platform_of(model)
    if platform is not None and platform != "gpu":
        warnings.warn(
            f"no product of float8 on {platform}: float8_training_ widens what is multiplied, so results are "
            "those of float8, and steps are not faster",
            UserWarning,
            stacklevel=2,
        )
    return model


def _with_float8(linear: torch.nn.Linear) -> Float8TrainingLinear:
    with torch.device("meta"):
        made = Float8TrainingLinear(
            linear.in_features, linear.out_features, bias=linear.bias is not None
        )
    made.weight, made.bias = linear.weight, linear.bias
    return made.train(linear.training)


def _platform_of(model: torch.nn.Module) -> str | None:
    """JAX's name of the platform that the module is on, None where that is not ours."""
    first = next(model.parameters(), None)
    if first is None or first.device.type != "pjrt":
        return None
    return client().chip.platform
