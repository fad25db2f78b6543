"""The loss of each token by itself, with a backward that goes through the classes again."""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.extend import lowers
from torch_pjrt_kernels.cross_entropy import chunked, reference
from torch_pjrt_kernels.refusals import without_derivative

Tensor = torch.Tensor
Optional = torch.Tensor | None

REFUSAL = (
    "linear_cross_entropy",
    "compute `cross_entropy(linear(hidden, weight, bias), target)`, with all logits",
)


def losses(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, class_weight: Optional,
    ignore_index: int, label_smoothing: float, soft_cap: float | None,
) -> Tensor:  # fmt: skip
    """(tokens,): of what is flat and fits."""
    return torch.ops.torch_pjrt_kernels.linear_cross_entropies(
        hidden, weight, bias, target, class_weight, ignore_index, label_smoothing, soft_cap
    )[0]


@torch.library.custom_op("torch_pjrt_kernels::linear_cross_entropies", mutates_args=())
def _losses(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, class_weight: Optional,
    ignore_index: int, label_smoothing: float, soft_cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The losses, and the logsumexp of each token's logits."""
    wide = _wide(hidden.dtype)
    return reference.losses(
        hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide), target,
        class_weight, ignore_index, label_smoothing, soft_cap,
    )  # fmt: skip


@_losses.register_fake
def _(hidden: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    made = [hidden.new_empty(hidden.shape[:1], dtype=_wide(hidden.dtype)) for _ in range(2)]
    return made[0], made[1]


@torch.library.custom_op("torch_pjrt_kernels::linear_cross_entropies_backward", mutates_args=())
def _backward(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor,
    class_weight: Optional, logsumexp: Tensor, ignore_index: int, label_smoothing: float,
    soft_cap: float | None, of_hidden: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of hidden, weight and bias; without elements if they are not wanted."""
    wide = _wide(hidden.dtype)
    found = reference.pulled_back(
        grad, hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide), target,
        class_weight, ignore_index, label_smoothing, soft_cap,
    )  # fmt: skip
    wanted = (of_hidden, of_weight, of_bias)
    made = [
        new.to(like.dtype)
        if asked and new is not None and like is not None
        else hidden.new_empty(0)
        for new, like, asked in zip(found, (hidden, weight, bias), wanted, strict=True)
    ]
    return made[0], made[1], made[2]


@_backward.register_fake
def _(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Optional, *rest: Any
) -> tuple[Tensor, ...]:
    return tuple(
        like.new_empty(like.shape) if asked and like is not None else hidden.new_empty(0)
        for like, asked in zip((hidden, weight, bias), rest[-3:], strict=True)
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:5], output[1])
    ctx.form = inputs[5:]
    ctx.set_materialize_grads(False)


def _differentiated(ctx: Any, grad: Optional, of_logsumexp: Optional) -> tuple[Any, ...]:
    none = (None,) * 8
    if grad is None:
        return none
    *inputs, logsumexp = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[i] and inputs[i] is not None for i in range(3)]
    found = torch.ops.torch_pjrt_kernels.linear_cross_entropies_backward(
        grad, *inputs, logsumexp, *ctx.form, *wanted
    )
    return *(x if asked else None for x, asked in zip(found, wanted, strict=True)), *none[3:]


torch.library.register_autograd(
    "torch_pjrt_kernels::linear_cross_entropies", _differentiated, setup_context=_keep
)
without_derivative("torch_pjrt_kernels::linear_cross_entropies_backward", *REFUSAL)


@lowers(
    torch.ops.torch_pjrt_kernels.linear_cross_entropies.default,
    static=("label_smoothing", "soft_cap"),
)
def _rule(
    hidden: Any, weight: Any, bias: Any, target: Any, class_weight: Any, ignore_index: int,
    label_smoothing: float, soft_cap: float | None,
) -> Any:  # fmt: skip
    return chunked.losses(
        hidden, weight, bias, target, class_weight, ignore_index=ignore_index,
        label_smoothing=label_smoothing, soft_cap=soft_cap,
    )  # fmt: skip


@lowers(
    torch.ops.torch_pjrt_kernels.linear_cross_entropies_backward.default,
    static=("label_smoothing", "soft_cap"),
)
def _rule_of_backward(
    grad: Any, hidden: Any, weight: Any, bias: Any, target: Any, class_weight: Any,
    logsumexp: Any, ignore_index: int, label_smoothing: float, soft_cap: float | None,
    of_hidden: bool, of_weight: bool, of_bias: bool,
) -> Any:  # fmt: skip
    import jax.numpy as jnp

    found = chunked.pulled_back(
        grad, hidden, weight, bias, target, class_weight, logsumexp, ignore_index=ignore_index,
        label_smoothing=label_smoothing, soft_cap=soft_cap,
        wanted=(bool(of_hidden), bool(of_weight), bool(of_bias)),
    )  # fmt: skip
    return tuple(jnp.zeros((0,), hidden.dtype) if x is None else x for x in found)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
