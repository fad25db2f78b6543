"""PyTorch's own `linear_cross_entropy`, where this PyTorch has it: some classes at a time.

By itself it makes all logits, and with `options` it is a loop in Python over chunks of tokens, which a
program would hold as often as it runs.
"""

from __future__ import annotations

from functools import wraps
from types import ModuleType
from typing import Any

import torch

from torch_pjrt.extend import after_import
from torch_pjrt_kernels.cross_entropy.chunked import classes_of_chunk
from torch_pjrt_kernels.cross_entropy.operator import linear_cross_entropy
from torch_pjrt_kernels.one_node import one_node

Tensor = torch.Tensor
_NAME = "linear_cross_entropy"


def install() -> None:
    """Stand before PyTorch's function, for tensors of the device."""
    after_import("torch.nn.functional", _stand_before)


def _stand_before(module: ModuleType) -> None:
    """In its module: `torch.nn.LinearCrossEntropyLoss` calls it there, too."""
    before = getattr(module, _NAME, None)
    if before is None or hasattr(before, "before"):
        return

    @wraps(before)
    def standing(input: Tensor, linear_weight: Tensor, target: Tensor, **options: Any) -> Tensor:
        if objection(input, linear_weight, target, **options) is not None:
            return before(input, linear_weight, target, **options)
        return _ours(input, linear_weight, target, **options)

    standing.before = before  # type: ignore[attr-defined]
    setattr(module, _NAME, one_node(standing))


def objection(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: Any = None,
) -> str | None:  # fmt: skip
    """What this way has against a call; None where it takes it. What is wrong is PyTorch's to refuse."""
    given = [x for x in (input, linear_weight, linear_bias, weight) if x is not None]
    if not all(isinstance(x, Tensor) and x.device.type == "pjrt" for x in (*given, target)):
        return "tensors of other devices"
    if input.dim() not in (1, 2) or linear_weight.dim() != 2 or not linear_weight.shape[0]:
        return "losses of several dims"
    if target.dtype != torch.int64 or target.shape != input.shape[:-1]:
        return "targets that are probabilities"
    if linear_weight.shape[1] != input.shape[-1] or reduction not in ("mean", "sum", "none"):
        return "arguments that do not fit"
    of_classes = [x for x in (linear_bias, weight) if x is not None]
    if any(x.shape != linear_weight.shape[:1] for x in of_classes):
        return "arguments that do not fit"
    dtypes = {x.dtype for x in (input, linear_weight, linear_bias) if x is not None}
    if not input.is_floating_point() or (len(dtypes) > 1 and not _is_autocast()):
        return "several dtypes"
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        return "class weights that learn"
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return "a transform of `torch.func`"
    n_tokens, n_classes = input.shape[0] if input.dim() == 2 else 1, linear_weight.shape[0]
    if options is None and classes_of_chunk(n_tokens, n_classes) == n_classes:
        return "all logits take little"
    return None


def _ours(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: Any = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: Any = None,
) -> Tensor:  # fmt: skip
    found = linear_cross_entropy(
        input, linear_weight, target, linear_bias, class_weight=weight, reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return found if _is_autocast() else found.to(input.dtype)


def _is_autocast() -> bool:
    return torch.is_autocast_enabled("pjrt")
