"""`rms_norm` as one operator, with a backward that is one: PyTorch's own is a dozen on the device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import rms_norm as composed

from torch_pjrt.extend import lowers
from torch_pjrt.plugin import aten, rules
from torch_pjrt_kernels.attention.tpu import objection_of_the_chip
from torch_pjrt_kernels.norms import rms_norm_tpu
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.own.on_chip import traced_on_the_chip

Tensor = torch.Tensor


@one_node
def rms_norm(input: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """`torch.nn.functional.rms_norm` of the last dim: rows over the root of their mean square, weighted.

    input   of shape (..., width), floats. weight: (width,). Both get gradients.

    On TPUs a kernel computes it, forward and backward, for bfloat16 and float32, a width that is a multiple
    of 128 and a number of rows that is one of 16; else, and elsewhere, it is what PyTorch's computes. The
    result has the input's shape and dtype; sums are in float32, in float64 for float64. It has a derivative,
    which has none itself. Raises `ValueError` for a weight of another width.
    """
    if weight.shape != input.shape[-1:]:
        raise ValueError(
            f"rms_norm takes (..., width) and (width,); saw {list(input.shape)}, {list(weight.shape)}"
        )
    return torch.ops.torch_pjrt_kernels.rms_norm(input, weight, eps)[0]


@torch.library.custom_op("torch_pjrt_kernels::rms_norm", mutates_args=())
def _rms_norm(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The result, and what each row was multiplied by: (..., 1)."""
    wide = input.to(_wide(input.dtype))
    rstd = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return composed(input, weight.shape, weight, eps).to(input.dtype).clone(), rstd


@_rms_norm.register_fake
def _(input: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    of_rows = input.new_empty((*input.shape[:-1], 1), dtype=_wide(input.dtype))
    return input.new_empty(input.shape), of_rows


@torch.library.custom_op("torch_pjrt_kernels::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    grad: Tensor, input: Tensor, rstd: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    grad, wide = grad.to(rstd.dtype), input.to(rstd.dtype)
    normal, scaled = wide * rstd, grad * weight.to(rstd.dtype)
    along = (scaled * normal).mean(-1, keepdim=True)
    of_weight = (grad * normal).flatten(0, -2).sum(0)
    return (rstd * (scaled - normal * along)).to(input.dtype), of_weight.to(weight.dtype)


@_rms_norm_backward.register_fake
def _(grad: Tensor, input: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return input.new_empty(input.shape), weight.new_empty(weight.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])


def _differentiated(ctx: Any, grad: Tensor, *unused: Any) -> tuple[Tensor, Tensor, None]:
    input, weight, rstd = ctx.saved_tensors
    found = torch.ops.torch_pjrt_kernels.rms_norm_backward(grad, input, rstd, weight)
    return *found, None


torch.library.register_autograd(
    "torch_pjrt_kernels::rms_norm", _differentiated, setup_context=_keep
)


def objection(input: Any, weight: Any) -> str | None:
    """What the kernel, or the chip, has against a call; None where it is computed by the kernel."""
    *leading, width = input.shape
    of_shapes = rms_norm_tpu.objection(
        math.prod(leading), width, input.dtype.name, weight.dtype.name
    )
    return of_shapes or objection_of_the_chip()


@lowers(torch.ops.torch_pjrt_kernels.rms_norm.default, static=("eps",))
def _rule(input: Any, weight: Any, eps: float) -> Any:
    if objection(input, weight) is not None:
        row = rules.core_rules()[aten._fused_rms_norm.default]
        return row.rule(input, weight.shape, weight, eps)
    rows = input.reshape(-1, input.shape[-1])
    y, rstd = traced_on_the_chip(rms_norm_tpu.with_eps(eps), rows, weight)
    return y.reshape(input.shape), rstd.reshape(*input.shape[:-1], 1)


@lowers(torch.ops.torch_pjrt_kernels.rms_norm_backward.default)
def _rule_of_backward(grad: Any, input: Any, rstd: Any, weight: Any) -> Any:
    if objection(input, weight) is not None:
        row = rules.core_rules()[aten._fused_rms_norm_backward.default]
        return row.rule(grad, input, weight.shape, rstd, weight, (True, True))
    rows = [x.reshape(-1, input.shape[-1]) for x in (grad, input)]
    found = traced_on_the_chip(rms_norm_tpu.backward, *rows, rstd.reshape(-1, 1), weight)
    return found[0].reshape(input.shape), found[1].astype(weight.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
