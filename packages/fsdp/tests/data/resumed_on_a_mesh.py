"""What each of several processes, which share a mesh, is given of data that somebody else has begun with.

resumed_on_a_mesh.py STATE     a JSON file with the state of a sampler of 60 samples
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_pjrt_spmd as spmd
from torch_pjrt_fsdp import DataShard, GlobalBatchSampler, GlobalStream, ResumableLoader
from torch_pjrt_spmd import distributed

N = 60


def given(mesh: spmd.Mesh, state: dict[str, Any], loaded: set[int]) -> list[list[int]]:
    """The batches, whole, of the rest of the epoch."""

    class Rows(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            loaded.add(index)
            return super().__getitem__(index)

    rows = Rows(torch.arange(N))
    sampler = GlobalBatchSampler(N, 8, seed=6, shard=DataShard.of_mesh(mesh, ("data",)))
    loader = ResumableLoader(DataLoader(rows, batch_sampler=sampler))
    on_mesh = spmd.DeviceLoader(loader, mesh, ("data",), prefetch=2)
    on_mesh.load_state_dict(state)
    batches = []
    for (x,) in on_mesh:
        batches.append(x.tolist())
        assert on_mesh.state_dict()["position"] == state["position"] + 8 * len(batches)
    return batches


def refused(mesh: spmd.Mesh) -> str:
    """What is said of rows that are not those of this process's chips."""
    sampler = GlobalBatchSampler(N, 8)
    try:
        loader = DataLoader(TensorDataset(torch.arange(N)), batch_sampler=sampler)
        spmd.DeviceLoader(loader, mesh, ("data",))
    except spmd.ShardingError as error:
        return str(error)
    return ""


def main() -> None:
    distributed.initialize()
    state = json.loads(Path(sys.argv[1]).read_text())
    rows_by_process = spmd.Mesh((2, 4), ("data", "model"))
    rows_in_each = spmd.Mesh((4, 2), ("model", "data"))
    own: set[int] = set()
    found: dict[str, Any] = {
        "shard": DataShard.of_processes().rank,
        "by process": given(rows_by_process, state, own),
        "in each": given(rows_in_each, state, set()),
        "loaded": len(own),
        "refused": [refused(rows_by_process), refused(rows_in_each)],
    }
    stream = GlobalStream(range(N), 8, shard=DataShard.of_mesh(rows_by_process, ("data",)))
    loader = DataLoader(stream, batch_size=None)
    found["stream"] = [
        x.tolist() for x in spmd.DeviceLoader(ResumableLoader(loader), rows_by_process, ("data",))
    ]
    print("\n" + json.dumps(found), flush=True)


main()
