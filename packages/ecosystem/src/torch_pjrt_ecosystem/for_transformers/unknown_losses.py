"""A compiled model whose class has no loss of its own takes the one for next tokens, without the warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import wrap_property


def install(modeling: Any) -> None:
    """`modeling` is `transformers.modeling_utils`."""

    def loss_function(original: Callable[[Any], Any], self: Any) -> Any:
        """Dynamo traces this."""
        if (
            torch.compiler.is_compiling()
            and getattr(self, "loss_type", None) is None
            and not hasattr(self, "_loss_function")
            and next(self.parameters()).device.type == "pjrt"
        ):
            return modeling.LOSS_MAPPING["ForCausalLM"]
        return original(self)

    wrap_property(modeling.PreTrainedModel, "loss_function", loss_function)
