"""What it is, in plain PyTorch, with all logits: the oracle, and what tensors of other devices run."""

from __future__ import annotations

import torch

from torch_pjrt_kernels.as_autocast import in_its_dtypes

Tensor = torch.Tensor


@in_its_dtypes
def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    mean: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The loss, and its gradients with respect to hidden, weight and bias, by the formulas.

    hidden    of shape (tokens, width). weight: (classes, width); bias, class_weight: (classes,);
              target: (tokens,).

    All is computed in the dtype of `hidden`.
    """
    form = (ignore_index, label_smoothing, soft_cap)
    each, _ = losses(hidden, weight, bias, target, class_weight, *form)
    counts = (target != ignore_index).to(hidden.dtype)
    of_target = torch.ones_like(counts)
    if class_weight is not None:
        of_target = class_weight.to(hidden.dtype)[target.clamp(0, len(weight) - 1)]
    divisor = (counts * of_target).sum() if mean else counts.new_ones(())
    share = torch.where(counts > 0, 1 / divisor, 0)
    loss = each.sum() / divisor
    return loss, *pulled_back(share, hidden, weight, bias, target, class_weight, *form)


@in_its_dtypes
def losses(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
    class_weight: Tensor | None, ignore_index: int, label_smoothing: float, soft_cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The loss of each token, 0 where it is ignored, and the logsumexp of its logits."""
    logits = _logits(hidden, weight, bias, soft_cap)
    wanted = _wanted(target, weight, class_weight, label_smoothing, logits.dtype)
    logsumexp = logits.logsumexp(-1)
    found = (wanted * (logsumexp[:, None] - logits)).sum(-1)
    return torch.where(target == ignore_index, 0, found), logsumexp


@in_its_dtypes
def pulled_back(
    grad: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor,
    class_weight: Tensor | None, ignore_index: int, label_smoothing: float, soft_cap: float | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The gradients of `losses` with respect to hidden, weight and bias; `grad` is that of each loss."""
    logits = _logits(hidden, weight, bias, soft_cap)
    wanted = _wanted(target, weight, class_weight, label_smoothing, logits.dtype)
    share = torch.where(target == ignore_index, 0, grad)
    of_logits = logits.softmax(-1) * wanted.sum(-1, keepdim=True) - wanted
    of_logits = of_logits * share[:, None]
    if soft_cap is not None:
        of_logits = of_logits * (1 - (logits / soft_cap) ** 2)
    of_bias = None if bias is None else of_logits.sum(0)
    return of_logits @ weight, of_logits.T @ hidden, of_bias


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, soft_cap: float | None) -> Tensor:
    raw = hidden @ weight.T
    if bias is not None:
        raw = raw + bias
    return raw if soft_cap is None else soft_cap * torch.tanh(raw / soft_cap)


def _wanted(
    target: Tensor,
    weight: Tensor,
    class_weight: Tensor | None,
    smoothing: float,
    dtype: torch.dtype,
) -> Tensor:
    """What the logarithm of each class's share counts: (tokens, classes)."""
    n_classes = len(weight)
    hits = torch.nn.functional.one_hot(target.clamp(0, n_classes - 1), n_classes).to(dtype)
    wanted = hits * (1 - smoothing) + smoothing / n_classes
    return wanted if class_weight is None else wanted * class_weight.to(dtype)
