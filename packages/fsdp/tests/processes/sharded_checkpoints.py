"""Two processes of two chips each save together and load together: prints what it found, then is preempted.

    sharded_checkpoints.py FOLDER group|mesh

With a group it is PyTorch's FSDP2. `mesh` is without one: the processes share a mesh, and nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch_pjrt_spmd as spmd
from torch_pjrt_fsdp import CheckpointManager, load_checkpoint, save_checkpoint
from torch_pjrt_fsdp.checkpoint.planning import Planned
from torch_pjrt_spmd import CheckpointError, distributed


def whole() -> torch.Tensor:
    return torch.arange(8 * 12.0).reshape(8, 12)


def on_a_mesh(folder: Path) -> dict[str, Any]:
    mesh = spmd.Mesh((2, 2), ("data", "model"))
    state = {
        "parts": spmd.distribute_tensor(whole(), mesh, ("data", "model")),
        "own": spmd.distribute_tensor(whole(), mesh, ("model",)),
        "copies": spmd.distribute_tensor(whole(), mesh, ()),
        "number": 3,
    }
    save_checkpoint(state, folder / "mesh")
    index = json.loads((folder / "mesh" / "checkpoint.json").read_text())["index"]
    names = [entry["name"] for entry in index["entries"]]
    into: dict[str, Any] = {
        "parts": spmd.distribute_tensor(torch.zeros(8, 12), mesh, ("model", None)),
        "own": spmd.distribute_tensor(torch.zeros(8, 12), mesh, (None, "data")),
        "copies": torch.zeros(8, 12),
        "number": 0,
    }
    load_checkpoint(into, folder / "mesh")
    alone = {"alone": spmd.distribute_tensor(torch.zeros(8, 12), mesh, (None, ("data", "model")))}
    load_checkpoint(alone, folder / "alone")
    return {
        "written": {name: names.count(name) for name in state},
        "files": sorted(index["files"]),
        "loaded": [
            into[name].cpu().tolist() == whole().tolist() for name in ("parts", "own", "copies")
        ],
        "from one process": alone["alone"].cpu().tolist() == whole().tolist(),
        "number": into["number"],
    }


def fully_sharded(folder: Path) -> dict[str, Any]:
    """PyTorch's FSDP2: what the two processes train on after loading is what they would have."""

    def made() -> tuple[Any, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 15), nn.Tanh(), nn.Linear(15, 4)).to("pjrt")
        fully_shard(model, mesh=init_device_mesh("pjrt", (dist.get_world_size(),)))
        return model, torch.optim.AdamW(model.parameters(), 0.1)

    def step(model: Any, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.ones(2, 8, device="pjrt")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    model, optimizer = made()
    step(model, optimizer)
    save_checkpoint({"model": model, "optimizer": optimizer}, folder / "fsdp")
    wanted = [step(model, optimizer) for _ in range(2)]
    again, its = made()
    load_checkpoint({"model": again, "optimizer": its}, folder / "fsdp")
    kinds = {type(x).__name__ for x in its.state_dict()["state"][0].values()}
    return {
        "losses": [step(again, its) for _ in range(2)] == wanted,
        "kinds": sorted(kinds),
        "weight": model[0].weight.full_tensor().tolist(),
    }


class Odd:
    """What could not be loaded."""


def failing(folder: Path) -> dict[str, Any]:
    """What each process is told if one cannot save, and how long that takes; the save after is complete."""
    rank = distributed.process_index()
    state: dict[str, Any] = {"x": torch.ones(4, device="pjrt"), "own": {"rank": rank}}
    found: dict[str, Any] = {"told": []}
    begun = time.monotonic()
    manager = CheckpointManager(folder / "failing", per_process=["own"], preemption=None)
    manager.save(1, state)

    def told(do: Any) -> None:
        try:
            do()
        except CheckpointError as error:
            found["told"].append(str(error))

    for faulty in (0, 1):
        told(lambda: manager.save(2, {**state, "own": {"odd": Odd() if rank == faulty else 1}}))  # noqa: B023
        with pytest.MonkeyPatch.context() as patched:
            if rank == faulty:
                patched.setattr(Planned, "placed", lambda *arguments: 1 / 0)
            manager.save(3, state)
            told(manager.wait)
    manager.save(4, state)
    manager.close()
    return {**found, "seconds": time.monotonic() - begun, "steps": manager.steps()}


def preempted(folder: Path) -> None:
    """The second process is told to end while the first is many steps ahead; both do, after the same step."""
    manager = CheckpointManager(folder / "run", every=1_000_000, per_process=["rank"])
    rank = distributed.process_index()
    state: dict[str, Any] = {"step": 0, "rank": {"is": rank}}
    for step in range(1, 1_000_000):
        state["step"] = step
        time.sleep(0.001 + 0.01 * rank)
        if step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        manager.save(step, state)


def main() -> None:
    folder, how = Path(sys.argv[1]), sys.argv[2]
    if how == "group":
        dist.init_process_group("cpu:gloo,pjrt:pjrt")
    else:
        distributed.initialize()
    found = fully_sharded(folder) if how == "group" else on_a_mesh(folder)
    found["failing"] = failing(folder)
    print("\n" + json.dumps(found), flush=True)
    preempted(folder)


main()
