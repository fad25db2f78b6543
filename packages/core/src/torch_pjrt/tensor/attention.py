"""Which implementation `scaled_dot_product_attention` takes on this device."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from torch_pjrt.run.client import client

aten = torch.ops.aten


def _fused_sdp_choice(*args: Any, **kwargs: Any) -> int:
    """One recorded operator where a rule computes it, else PyTorch's composition of simpler ones."""
    has_rule = aten._scaled_dot_product_fused_attention_overrideable.default in client().lowerings
    return int((SDPBackend.OVERRIDEABLE if has_rule else SDPBackend.MATH).value)


KERNELS: dict[Any, Any] = {aten._fused_sdp_choice.default: _fused_sdp_choice}
