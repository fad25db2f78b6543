"""`linear_cross_entropy`: the loss behind a linear layer, as an operator that makes its gradients at once.

Where each token's loss is wanted by itself, the gradients cannot be made before those of the losses are
known: `losses.py` has operators of its own for that.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from torch_pjrt.extend import lowers
from torch_pjrt_kernels.as_autocast import as_autocast
from torch_pjrt_kernels.cross_entropy import chunked, reference
from torch_pjrt_kernels.cross_entropy import losses as of_tokens
from torch_pjrt_kernels.one_node import one_node
from torch_pjrt_kernels.refusals import no_second_derivative

Tensor = torch.Tensor
Optional = torch.Tensor | None
Reduction = Literal["mean", "sum", "none"]


@one_node
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Optional = None,
    *,
    class_weight: Optional = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """`cross_entropy(linear(hidden, weight, bias), target)` in memory that all logits would not fit in.

    hidden    of shape (..., width), a floating dtype. weight: (classes, width); bias: (classes,), as in
              `torch.nn.Linear`, of the same dtype. target: (...), classes as integers.
    class_weight   (classes,): what tokens count whose target it is. It gets no gradient.
    ignore_index, label_smoothing   as of `torch.nn.functional.cross_entropy`. Other targets that are no class
              are not noticed.
    soft_cap  logits become `soft_cap * tanh(logits / soft_cap)` first.
    reduction of the tokens' losses; "none" gives them as they are, of the target's shape.

    The result is in float32 (float64 for float64). Under autocast hidden, weight and bias are cast as for a
    linear layer. Logits are made some classes at a time, in float32: once for the loss, and once more where a
    gradient is wanted. That is made at once, so that the backward only scales it; with "none" the backward
    makes it. It has no derivative itself. Raises `ValueError` for shapes and dtypes that do not fit.

        loss = linear_cross_entropy(x, model.head.weight, tokens)
    """
    given = as_autocast(hidden, weight, bias)
    hidden, weight, bias = given  # type: ignore[assignment]
    _check(hidden, weight, target, bias, class_weight, reduction)
    wanted = [torch.is_grad_enabled() and x is not None and x.requires_grad for x in given]
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
    if reduction == "none":
        found = of_tokens.losses(
            flat, weight, bias, targets, class_weight, ignore_index, label_smoothing, soft_cap
        )
        return found.reshape(target.shape)
    return torch.ops.torch_pjrt_kernels.linear_cross_entropy(
        flat, weight, bias, targets, class_weight, ignore_index, label_smoothing, soft_cap,
        reduction == "mean", *wanted,
    )[0]  # fmt: skip


def _check(
    hidden: Tensor, weight: Tensor, target: Tensor, bias: Optional, class_weight: Optional,
    reduction: str,
) -> None:  # fmt: skip
    n_classes, width = (*weight.shape, 0)[0], hidden.shape[-1] if hidden.dim() else 0
    fits = weight.shape == (n_classes, width) and target.shape == hidden.shape[:-1]
    of_classes = [x for x in (bias, class_weight) if x is not None]
    if not fits or not n_classes or any(x.shape != (n_classes,) for x in of_classes):
        shapes = ", ".join(str(list(x.shape)) for x in (hidden, weight, target, *of_classes))
        raise ValueError(
            f"linear_cross_entropy takes (..., width), (classes, width), (...); saw {shapes}"
        )
    same = all(x.dtype == hidden.dtype for x in (weight, *([] if bias is None else [bias])))
    if not hidden.is_floating_point() or not same:
        saw = ", ".join(str(x.dtype) for x in (hidden, weight, bias) if x is not None)
        raise ValueError(
            f"linear_cross_entropy takes hidden, weight and bias of one floating dtype; saw {saw}"
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise ValueError(
            f"linear_cross_entropy takes classes as integers for targets; saw {target.dtype}"
        )
    if class_weight is not None and class_weight.requires_grad and torch.is_grad_enabled():
        raise ValueError("linear_cross_entropy has no gradient of class_weight: detach it")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(
            f"linear_cross_entropy reduces by 'mean', 'sum' or 'none'; saw {reduction!r}"
        )


@torch.library.custom_op("torch_pjrt_kernels::linear_cross_entropy", mutates_args=())
def _linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, class_weight: Optional,
    ignore_index: int, label_smoothing: float, soft_cap: float | None, mean: bool,
    of_hidden: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, and the gradients of hidden, weight and bias; without elements if they are not wanted."""
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    loss, *found = reference.linear_cross_entropy(
        hidden.to(wide), weight.to(wide), None if bias is None else bias.to(wide), target,
        class_weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
        soft_cap=soft_cap, mean=mean,
    )  # fmt: skip
    wanted = (of_hidden, of_weight, of_bias)
    gradients = [
        hidden.new_empty(0) if new is None or like is None or not asked else new.to(like.dtype)
        for new, like, asked in zip(found, (hidden, weight, bias), wanted, strict=True)
    ]
    return loss, gradients[0], gradients[1], gradients[2]


@_linear_cross_entropy.register_fake
def _(
    hidden: Tensor, weight: Tensor, bias: Optional, target: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    gradients = [
        hidden.new_empty(0) if like is None or not asked else like.new_empty(like.shape)
        for like, asked in zip((hidden, weight, bias), rest[-3:], strict=True)
    ]
    return hidden.new_empty((), dtype=wide), *gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.wanted = inputs[-3:]
    ctx.set_materialize_grads(False)


def _differentiated(ctx: Any, grad: Optional, *of_gradients: Any) -> tuple[Any, ...]:
    if any(x is not None for x in of_gradients):
        raise no_second_derivative(*of_tokens.REFUSAL)
    none = (None,) * 12
    if grad is None:
        return none
    found = [
        x * grad.to(x.dtype) if asked else None
        for x, asked in zip(ctx.saved_tensors, ctx.wanted, strict=True)
    ]
    return *found, *none[3:]


torch.library.register_autograd(
    "torch_pjrt_kernels::linear_cross_entropy", _differentiated, setup_context=_keep
)


@lowers(
    torch.ops.torch_pjrt_kernels.linear_cross_entropy.default,
    static=("label_smoothing", "soft_cap"),
)
def _rule(
    hidden: Any, weight: Any, bias: Any, target: Any, class_weight: Any, ignore_index: int,
    label_smoothing: float, soft_cap: float | None, mean: bool, of_hidden: bool, of_weight: bool,
    of_bias: bool,
) -> tuple[Any, ...]:  # fmt: skip
    import jax.numpy as jnp

    loss, *found = chunked.linear_cross_entropy(
        hidden, weight, bias, target, class_weight, ignore_index=ignore_index,
        label_smoothing=label_smoothing, soft_cap=soft_cap, mean=mean,
        wanted=(bool(of_hidden), bool(of_weight), bool(of_bias)),
    )  # fmt: skip
    return loss, *(jnp.zeros((0,), hidden.dtype) if x is None else x for x in found)
