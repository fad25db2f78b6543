"""Checkpoints of orbax are read by JAX's programs, and theirs are read here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from torch_pjrt_fsdp import load_orbax, save_orbax
from torch_pjrt_spmd import CheckpointError, Mesh, distribute_tensor, sharding_of

orbax: Any = pytest.importorskip("orbax.checkpoint", reason="needs orbax-checkpoint")
pytestmark = pytest.mark.filterwarnings("ignore")  # orbax's own


def test_a_state_on_a_mesh_comes_back_on_another(tmp_path: Path) -> None:
    mesh = Mesh((2, 4), ("data", "model"))
    x = torch.arange(16 * 24.0).reshape(16, 24)
    net = nn.Linear(3, 2).to("pjrt")
    state = {"x": distribute_tensor(x, mesh, ("data", "model")), "net": net, "step": 7, "host": x}
    save_orbax(state, tmp_path / "a")
    y = distribute_tensor(torch.zeros(16, 24), mesh, (None, "model"))
    again = nn.Linear(3, 2).to("pjrt")
    into = {"x": y, "net": again, "step": 0, "host": torch.zeros(16, 24, dtype=torch.bfloat16)}

    load_orbax(into, tmp_path / "a")

    assert torch.equal(y.cpu(), x)
    assert sharding_of(y).spec == (None, "model")  # type: ignore[union-attr]
    assert torch.equal(again.weight, net.weight)
    assert into["step"] == 7
    assert torch.equal(into["host"], x.bfloat16())  # type: ignore[arg-type]


def test_jax_reads_it_and_writes_what_is_read(tmp_path: Path) -> None:
    save_orbax({"a": {"b": torch.arange(6.0, device="pjrt")}}, tmp_path / "ours")
    with orbax.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(tmp_path / "ours")
        tree = {
            "params": {"kernel": jnp.arange(8.0).reshape(2, 4), "bias": jnp.ones(4, jnp.bfloat16)}
        }
        checkpointer.save(tmp_path / "theirs", tree)
    assert jax.tree.map(lambda x: x.tolist(), found) == {"a": {"b": [0, 1, 2, 3, 4, 5]}}

    kernel = torch.zeros(2, 4, device="pjrt")
    load_orbax({"params": {"kernel": kernel}}, tmp_path / "theirs")
    assert kernel.flatten().tolist() == list(range(8))
    with pytest.raises(CheckpointError, match=r"'params\.kernel'.*\n.*\[2, 4\]\n.*\[3\]"):
        load_orbax({"params": {"kernel": torch.zeros(3)}}, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="nothing of this name"):
        load_orbax({"params": {"other": torch.zeros(3)}}, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="str"):
        save_orbax({"text": "a"}, tmp_path / "b")
