"""Adapters on frozen layers: LoRA on weights of few bits (Dettmers et al., "QLoRA", 2023)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_pjrt_quant.linear import QuantizedLinear


class LoraLinear(torch.nn.Module):
    """`base(x) + (x @ down.T) @ up.T * scale`.

    `down` is rank x in_features, `up` out_features x rank and zero at first. Only these two are trained; the
    base's bias is frozen.
    """

    def __init__(self, base: QuantizedLinear | torch.nn.Linear, rank: int, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        dtype = torch.float32 if isinstance(base, QuantizedLinear) else base.weight.dtype
        device = base.weight.device
        down = torch.empty(rank, base.in_features, dtype=dtype, device=device)
        torch.nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        self.down = torch.nn.Parameter(down)
        up = torch.zeros(base.out_features, rank, dtype=dtype, device=device)
        self.up = torch.nn.Parameter(up)

    def forward(self, input: Tensor) -> Tensor:
        """(*, in_features) -> (*, out_features), in the dtype of the input."""
        low = torch.nn.functional.linear(input, self.down.to(input.dtype))
        return (
            self.base(input) + torch.nn.functional.linear(low, self.up.to(input.dtype)) * self.scale
        )


def add_lora_(
    model: torch.nn.Module,
    rank: int = 16,
    alpha: float | None = None,
    which: Callable[[str, QuantizedLinear], bool] | None = None,
) -> torch.nn.Module:
    """Put a `LoraLinear` around each layer with a small weight, freeze all else, and return the module.

    alpha    the adapters count `alpha / rank`; twice the rank unless given.
    which    of a layer's name and the layer, whether it gets an adapter; all do, unless it says otherwise.

    Raises `ValueError` where no layer is quantized.
    """
    model.requires_grad_(False)
    scale = (2 * rank if alpha is None else alpha) / rank
    found = [
        (name, m)
        for name, m in model.named_modules()
        if name and isinstance(m, QuantizedLinear) and (which is None or which(name, m))
    ]
    if not found:
        raise ValueError("no layer has a weight of few bits: `quantize_` the module first")
    for name, layer in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LoraLinear(layer, rank, scale))
    return model
