"""Buffers that an exported model writes to are written where they lie."""

from __future__ import annotations

import numpy as np
import torch

from torch_pjrt_quant import export
from torch_pjrt_quant.exporting.load import load as load_without_torch


def test_a_cache_stays_where_it_is_in_memory(tmp_path):
    class Cache(torch.nn.Module):
        scale: torch.Tensor
        rows: torch.Tensor
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))
            self.register_buffer("rows", torch.ones(512, 256))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, row: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            self.rows.index_copy_(0, place, row * self.scale)
            self.count.add_(1)
            return self.rows[:4, 0] + self.count

    model = load_without_torch(
        export(Cache(), (torch.ones(1, 256), torch.tensor([0]))).save(tmp_path / "cache")
    )
    row = np.full((1, 256), 3.0, np.float32)

    places = [model.tensors["rows"].unsafe_buffer_pointer()]
    results = []
    for n in range(3):
        results.append(model(row, np.array([n])).tolist())
        places.append(model.tensors["rows"].unsafe_buffer_pointer())
    model.reset()
    results.append(model(row, np.array([3])).tolist())

    assert len(set(places)) == 1
    assert results == [[7, 2, 2, 2], [8, 8, 3, 3], [9, 9, 9, 4], [2, 2, 2, 7]]
    assert (model.state["rows"] == 1).all()
    assert float(model.tensors["scale"]) == 2
