"""timm's `ModelEmaV3` of a model on `pjrt`: its random numbers, for rounding bfloat16, are the host's."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from torch_pjrt_ecosystem.replacing import wrap


def install(model_ema: ModuleType) -> None:
    """`model_ema` is `timm.utils.model_ema`."""
    wrap(model_ema.ModelEmaV3, "__init__", _init)


def _init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    refusing = torch.Generator

    def generator(device: torch.device | str = "cpu") -> torch.Generator:
        return refusing("cpu" if torch.device(device).type == "pjrt" else device)

    with patch.object(torch, "Generator", generator):
        original(*args, **kwargs)
