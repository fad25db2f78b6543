"""Of a TPU's memory a plan has two figures: with, and without what is in the vector memory of the core."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torch_pjrt_spmd import auto_shard
from torch_pjrt_spmd.autoshard.chips import CHIPS, chip_named

MIB = 1 << 20


@pytest.mark.parametrize("rows", [64, 1 << 18])
@pytest.mark.parametrize("name", CHIPS)
def test_main_memory_is_what_does_not_fit_into_vector_memory(name: str, rows: int) -> None:
    """Of which 16 MiB are left to the operator that runs."""
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU())
    chip = replace(chip_named(name), memory_bytes=64 << 30)
    x = torch.empty(rows, 256, device="meta")
    memory = auto_shard(model, x, {"data": 2}, chip=chip, seconds=1).memory

    movable = memory.activations + memory.between
    there = {"v5e": 112, "v6e": 112, "v5p": 48}.get(name, 0)
    assert memory.vector == min(there * MIB, movable)
    assert memory.main == memory.peak - memory.vector
