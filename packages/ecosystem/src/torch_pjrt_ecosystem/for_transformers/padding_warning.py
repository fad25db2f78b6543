"""The look for padding where there is no mask, for a warning given once: in a model's first such forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap

_ASKED = "_pjrt_asked_for_padding"


def install(modeling_utils: Any) -> None:
    """`modeling_utils` is `transformers.modeling_utils`."""
    wrap(modeling_utils.PreTrainedModel, "warn_if_padding_and_no_attention_mask", _warn)


def _warn(
    original: Callable[..., None], model: Any, input_ids: torch.Tensor, attention_mask: Any
) -> None:
    is_asked = attention_mask is None and input_ids.device.type == "pjrt"
    if is_asked and not torch.compiler.is_compiling():
        if _ASKED in vars(model):
            return
        setattr(model, _ASKED, True)
    original(model, input_ids, attention_mask)
