"""What processes that tests start run: they import it by name, from a folder that pytest.ini names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def answer(model: nn.Module, x: torch.Tensor, to: Any) -> None:
    """What the process that was started makes of its arguments, as lists."""
    to.send((x.device.type, x.shape, model(torch.ones(2, device=x.device)).tolist()))
