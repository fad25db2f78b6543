"""timm's `ModelEmaV3` of a model on `pjrt`: its random numbers, for rounding bfloat16, are the host's."""

from __future__ import annotations

from types import ModuleType

import torch


def install(model_ema: ModuleType) -> None:
    """`model_ema` is `timm.utils.model_ema`. What it calls `torch` is PyTorch, but for generators."""
    if model_ema.torch is torch:
        model_ema.torch = _Torch("torch")  # type: ignore[attr-defined]


class _Torch(ModuleType):
    @staticmethod
    def Generator(device: torch.device | str = "cpu") -> torch.Generator:
        """A generator of that device; the host's for `pjrt`, which has none."""
        return torch.Generator("cpu" if torch.device(device).type == "pjrt" else device)

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)
