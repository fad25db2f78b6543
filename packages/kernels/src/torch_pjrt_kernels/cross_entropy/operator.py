"""`linear_cross_entropy`: the loss behind a linear layer, as an operator that makes its gradients at once."""

from __future__ import annotations

from typing import Any, Literal

import torch

from torch_pjrt.extend import lowers
from torch_pjrt_kernels.cross_entropy import chunked, reference
from torch_pjrt_kernels.one_node import one_node

Tensor = torch.Tensor
Optional = torch.Tensor | None


@one_node
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Optional = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """`cross_entropy(linear(hidden, weight, bias), target)` in memory that all logits would not fit in.

    hidden    of shape (..., width), a floating dtype. weight: (classes, width); bias: (classes,), as in
              `torch.nn.Linear`, of the same dtype. target: (...), classes as integers.
    ignore_index, label_smoothing   as of `torch.nn.functional.cross_entropy`. Other targets that are no class
              are not noticed.
    soft_cap  logits become `soft_cap * tanh(logits / soft_cap)` first.
    reduction of the tokens' losses.

    The result is a scalar in float32 (float64 for float64). Logits are made some classes at a time, in
    float32: once for the loss, and once more where a gradient is wanted. That is made at once, so that the
    backward only scales it: it has no derivative itself. Raises `ValueError` for shapes and dtypes that do
    not fit.

        loss = linear_cross_entropy(x, model.head.weight, tokens)
    """
    width, n_classes = hidden.shape[-1], weight.shape[0]
    fits = weight.shape == (n_classes, width) and target.shape == hidden.shape[:-1]
    if not fits or (bias is not None and bias.shape != (n_classes,)):
        shapes = ", ".join(str(list(x.shape)) for x in (hidden, weight, target))
        raise ValueError(
            f"linear_cross_entropy takes (..., width), (classes, width), (...); saw {shapes}"
        )
    if not hidden.is_floating_point() or weight.dtype != hidden.dtype:
        raise ValueError(
            "linear_cross_entropy takes hidden and weight of one floating dtype; "
            f"saw {hidden.dtype}, {weight.dtype}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"linear_cross_entropy reduces by 'mean' or 'sum'; saw {reduction!r}")
    given = [x for x in (hidden, weight, bias) if x is not None]
    with_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    return torch.ops.torch_pjrt_kernels.linear_cross_entropy(
        hidden.reshape(-1, width), weight, bias, target.reshape(-1), ignore_index,
        label_smoothing, soft_cap, reduction == "mean", with_gradients,
    )[0]  # fmt: skip


@torch.library.custom_op("torch_pjrt_kernels::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, ignore_index: int,
    label_smoothing: float, soft_cap: float | None, mean: bool, with_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, and the gradients of hidden, weight and bias; without elements if they are not wanted."""
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    loss, *found = reference.linear_cross_entropy(
        hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide), target,
        ignore_index=ignore_index, label_smoothing=label_smoothing, soft_cap=soft_cap, mean=mean,
    )  # fmt: skip
    gradients = [
        hidden.new_empty(0)
        if new is None or like is None or not with_gradients
        else new.to(like.dtype)
        for new, like in zip(found, (hidden, weight, bias), strict=True)
    ]
    return loss, gradients[0], gradients[1], gradients[2]


@_linear_cross_entropy.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    gradients = [
        hidden.new_empty(0) if like is None or not rest[-1] else like.new_empty(like.shape)
        for like in (hidden, weight, bias)
    ]
    return hidden.new_empty((), dtype=wide), *gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.has_bias = inputs[2] is not None
    ctx.set_materialize_grads(False)


def _differentiated(ctx: Any, grad: Optional, *unused: Any) -> tuple[Any, ...]:
    none = (None,) * 9
    if grad is None:
        return none
    found = [x * grad.to(x.dtype) for x in ctx.saved_tensors]
    return found[0], found[1], found[2] if ctx.has_bias else None, *none[3:]


torch.library.register_autograd(
    "torch_pjrt_kernels::linear_cross_entropy", _differentiated, setup_context=_keep
)


@lowers(
    torch.ops.torch_pjrt_kernels.linear_cross_entropy.default,
    static=("label_smoothing", "soft_cap"),
)
def _rule(
    hidden: Any, weight: Any, bias: Any, target: Any, ignore_index: int, label_smoothing: float,
    soft_cap: float | None, mean: bool, with_gradients: bool,
) -> tuple[Any, ...]:  # fmt: skip
    import jax.numpy as jnp

    loss, *found = chunked.linear_cross_entropy(
        hidden, weight, bias, target, ignore_index=ignore_index, label_smoothing=label_smoothing,
        soft_cap=soft_cap, mean=mean, with_gradients=with_gradients,
    )  # fmt: skip
    return loss, *(jnp.zeros((0,), hidden.dtype) if x is None else x for x in found)
