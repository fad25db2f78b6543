"""A script that `python -m torch_pjrt migrate` has rewritten prints what it printed with `torch_xla`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import warm

TRAINING = """
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.debug.metrics as met
from torch_xla.amp import syncfree
from torch_xla.distributed.parallel_loader import MpDeviceLoader

torch_xla.manual_seed(0)
torch.manual_seed(0)
device = xm.xla_device()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
model.to("xla")
optimizer = syncfree.AdamW(model.parameters(), lr=0.1)
batches = [torch.randn(4, 8) for _ in range(6)]

for batch in MpDeviceLoader(batches, xm.xla_device(), device_prefetch_size=1):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    xm.optimizer_step(optimizer, barrier=True)
    xm.add_step_closure(lambda loss: xm.master_print(loss.item()), args=(loss,))
    xm.mark_step()
xm.save(model.state_dict(), "weights.pt")
print(torch.load("weights.pt", map_location="cpu")["0.bias"].tolist())
print(len(met.metrics_report()) > 100, xm.is_xla_tensor(loss))
"""
ON_A_MESH = """
import numpy as np
import torch
import torch_xla.runtime as xr
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs

xr.use_spmd()
mesh = xs.Mesh(np.arange(8), (4, 2), ("data", "model"))
weight = torch.arange(64.0).reshape(8, 8).to(xm.xla_device())
xs.mark_sharding(weight, mesh, ("model", None))
x = torch.ones(8, 8).to(xm.xla_device())
xs.mark_sharding(x, mesh, ("data", None))
print((x @ weight.t()).sum(0).tolist())
"""


@pytest.mark.parametrize("script", [TRAINING, ON_A_MESH], ids=["training", "on a mesh"])
def test_a_migrated_script_prints_the_same(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "script.py"
    path.write_text(script)
    before = _printed(str(path))

    _printed("-m", "torch_pjrt", "migrate", "--write", str(path))

    assert "torch_xla" not in path.read_text()
    assert before
    assert _printed(str(path)) == before


def _printed(*arguments: str) -> str:
    eight = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = warm.run(arguments, {**os.environ, "XLA_FLAGS": eight})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
