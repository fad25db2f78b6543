"""What it is, in plain PyTorch, with all logits: the oracle, and what tensors of other devices run."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    soft_cap: float | None = None,
    mean: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The loss, and its gradients with respect to hidden, weight and bias, by the formulas.

    hidden    of shape (tokens, width). weight: (classes, width); bias: (classes,); target: (tokens,).

    All is computed in the dtype of `hidden`.
    """
    raw = hidden @ weight.T
    if bias is not None:
        raw = raw + bias
    logits = raw if soft_cap is None else soft_cap * torch.tanh(raw / soft_cap)
    counts = (target != ignore_index).to(logits.dtype)
    share = counts / (counts.sum() if mean else 1)
    n_classes = weight.shape[0]
    wanted = torch.nn.functional.one_hot(target.clamp(0, n_classes - 1), n_classes)
    wanted = wanted.to(logits.dtype) * (1 - label_smoothing) + label_smoothing / n_classes
    logs = torch.log_softmax(logits, -1)
    loss = (share * -(wanted * logs).sum(-1)).sum()
    of_logits = (logs.exp() - wanted) * share[:, None]
    if soft_cap is not None:
        of_logits = of_logits * (1 - (logits / soft_cap) ** 2)
    of_bias = None if bias is None else of_logits.sum(0)
    return loss, of_logits @ weight, of_logits.T @ hidden, of_bias
