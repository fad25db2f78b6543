"""timm's `ModelEmaV3` of a model on `pjrt`: its random numbers, for rounding bfloat16, are the host's."""

from __future__ import annotations

from types import ModuleType

import torch

from torch_pjrt_ecosystem.replacing import replace_of_pytorch


def install(model_ema: ModuleType) -> None:
    """`model_ema` is `timm.utils.model_ema`."""
    replace_of_pytorch(model_ema, Generator=_generator)


def _generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of that device; the host's for `pjrt`, which has none."""
    return torch.Generator("cpu" if torch.device(device).type == "pjrt" else device)
