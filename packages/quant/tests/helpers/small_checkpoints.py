"""A small model, and checkpoints of it as other tools write them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from torch_pjrt_quant import load_quantized_

COLUMNS, ROWS, GROUP = 64, 16, 32


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(COLUMNS)
        self.up = torch.nn.Linear(COLUMNS, ROWS)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.norm(x))


def others() -> dict[str, Tensor]:
    """What of the model is not quantized."""
    return {
        "norm.weight": torch.rand(COLUMNS),
        "norm.bias": torch.rand(COLUMNS),
        "up.bias": torch.rand(ROWS),
    }


def words(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Numbers (*, 8 n) from 0 to 15 as int32 (*, n): number order[i] of each eight in bits 4 i to 4 i + 3."""
    eights = numbers.numpy().astype(np.uint32).reshape(*numbers.shape[:-1], -1, 8)
    made = np.zeros(eights.shape[:-1], np.uint32)
    for position, source in enumerate(order):
        made |= eights[..., source] << np.uint32(4 * position)
    return torch.from_numpy(made.view(np.int32))


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Numbers (rows, columns), scales and zeros (rows, groups)."""
    numbers = torch.randint(0, 16, (ROWS, COLUMNS))
    shape = ROWS, COLUMNS // GROUP
    return numbers, (torch.rand(shape) + 0.1).half(), torch.randint(1, 16, shape)


def loaded(tensors: dict[str, Tensor], config: dict[str, Any], folder: Any) -> Model:
    safetensors.torch.save_file(
        {n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    with torch.device("meta"):
        model = Model()
    load_quantized_(model, folder)
    return model
