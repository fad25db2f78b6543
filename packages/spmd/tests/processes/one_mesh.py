"""One mesh of eight chips, of one, two or four processes: prints what came out, the same for all."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_pjrt
import torch_pjrt_spmd as spmd
from torch_pjrt_spmd import distributed

sys.path.insert(0, str(Path(__file__).parents[1] / "eight_chips"))

from small_gpt import WAYS, trained

WAYS_TO_TRAIN = {
    "fully sharded": {"spread": WAYS["fully sharded 8"]},
    "in three axes": {"spread": WAYS["data 2, sequence 2, tensor 2"]},
    "captured": {"spread": WAYS["data 2, tensor 4"], "how": "captured"},
    "compiled": {"spread": WAYS["data 2, tensor 4"], "how": "compiled"},
    "rolled": {"spread": WAYS["data 2, tensor 4"], "n_layers": 6},
}


A_FEW = {"captured": WAYS_TO_TRAIN["captured"]}


def losses() -> dict[str, list[float]]:
    ways = A_FEW if "--few" in sys.argv else WAYS_TO_TRAIN
    return {name: trained(**how)[0] for name, how in ways.items()}  # type: ignore[arg-type]


def values(mesh: spmd.Mesh) -> dict[str, Any]:
    """What tensors over all processes print, save, index and reduce to; each process reads the same."""
    torch.manual_seed(3)
    x = torch.randn(8, 8, device="pjrt")
    spmd.mark_sharding(x, mesh, ("data", "model"))
    saved = io.BytesIO()
    torch.save(x, saved)
    loaded = torch.load(io.BytesIO(saved.getvalue()), map_location="cpu", weights_only=True)
    y = torch.zeros(8, 8, device="pjrt")
    spmd.mark_sharding(y, mesh, ("model", None))
    y.copy_(loaded)
    moved = spmd.redistribute(x, mesh, (None, "data"))
    total = spmd.shard_map(
        lambda part: spmd.psum(part.sum(), ("data", "model")), mesh, [("data", "model")], ()
    )
    return {
        "whole": x.cpu().flatten().tolist(),
        "a row": x[3].tolist(),
        "printed": str(x),
        "saved and loaded": bool((y == x).all()),
        "moved": bool((moved == x).all()) and spmd.sharding_of(moved).spec == (None, "data"),  # type: ignore[union-attr]
        "gathered": spmd.full_tensor(x).flatten().tolist(),
        "nonzero": x.gt(0).nonzero().tolist(),
        "product": (x @ x.T).diagonal().tolist(),
        "qr": torch.linalg.qr(x)[1].diagonal().abs().tolist(),
        "shard_map": total(x).item(),
        "uneven": torch.arange(12.0, device="pjrt").view(3, 4).cumsum(0).tolist(),
        "random": torch.rand(3, device="pjrt").tolist(),
        "dropped": torch.nn.functional.dropout(torch.ones(64, device="pjrt")).tolist(),
    }


def batches(mesh: spmd.Mesh) -> dict[str, Any]:
    """Rows that each process has loaded by itself."""
    loaded = torch.zeros(64, dtype=torch.int64)

    class Rows(TensorDataset):
        def __getitem__(self, i: int) -> Any:
            loaded[i] += 1
            return super().__getitem__(i)

    rows = Rows(torch.arange(64.0).view(64, 1))
    torch.manual_seed(4)
    seen = [
        x.flatten().tolist()
        for _ in range(2)
        for (x,) in spmd.DeviceLoader(DataLoader(rows, 16, shuffle=True), mesh, ("data",))
    ]
    whole = [torch.arange(16.0).view(16, 1) + 16 * i for i in range(2)]
    listed = [x.flatten().tolist() for x in spmd.DeviceLoader(whole, mesh, ("data",))]
    n, index = distributed.process_count(), distributed.process_index()
    n_parts = min(n, 2)  # along `data`, which the processes share
    part = torch.arange(16.0).chunk(n_parts)[index * n_parts // n]
    made = spmd.make_global_batch({"x": part}, mesh, ("data",))["x"]
    return {
        "shuffled": seen,
        "listed": listed,
        "made": made.tolist(),
        "loaded here": int(loaded.sum()) / 128,
    }


def main() -> None:
    distributed.initialize()
    mesh = spmd.Mesh((2, 4), ("data", "model"))
    found: dict[str, Any] = {"losses": losses()}
    with spmd.use_mesh(mesh):
        found["values"], found["batches"] = values(mesh), batches(mesh)
    found["compiled"] = torch_pjrt.extend.counters.programs_compiled
    found["bytes of a chip"] = torch.pjrt.max_memory_allocated()  # type: ignore[attr-defined]
    print("\n" + json.dumps(found), flush=True)


main()
