"""`torch.optim.Adam` and `AdamW`, whose usual steps are recorded at once (`tensor/recording/adam_steps.py`).

By default they call operators over lists on this device, in one function of PyTorch's: ours stands before it.
Where Dynamo traces a step, it traces PyTorch's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torch_pjrt.device.imports import after_import
from torch_pjrt.tensor.recording.adam_steps import recorded_at_once

Tensors = list[torch.Tensor]


def install() -> None:
    """Stand before PyTorch's function."""
    after_import("torch.optim.adam", stand_before)


def stand_before(adam: Any) -> None:
    """The same in any module that has `_multi_tensor_adam`; nothing in another."""
    original = getattr(adam, "_multi_tensor_adam", None)
    if original is None or hasattr(original, "before"):
        return

    @functools.wraps(original)
    def multi_tensor_adam(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *further: Any,
        **options: Any,
    ) -> None:
        lists = (params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, grads)
        if further or not recorded_at_once(original, lists, state_steps, options):
            original(
                *(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps),
                *further,
                **options,
            )

    multi_tensor_adam.before = original  # type: ignore[attr-defined]
    adam._multi_tensor_adam = multi_tensor_adam
    after_import("torch._dynamo", lambda dynamo: _let_trace(dynamo, multi_tensor_adam))


def _let_trace(dynamo: Any, ours: Any) -> None:
    """Dynamo skips our code, which would end the graph."""
    substitute = getattr(dynamo, "substitute_in_graph", None)
    if substitute is not None:  # else another PyTorch
        substitute(ours, skip_signature_check=True)(ours.before)
