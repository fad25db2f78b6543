"""On a slice of TPUs that is not here, a chip needs less where parts lie in the host's memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt_fsdp import HostOffload, fully_shard
from torch_pjrt_spmd import Mesh, distribute_tensor

TARGET, N_CHIPS = "v5e:2x4", 8
WIDTH, N_LAYERS = 768, 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("libtpu") is None, reason="libtpu is not installed (`hatch run aot:run` does)"
    ),
]


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "eight_chips"))
    import learner  # pyright: ignore[reportMissingImports]

    yield learner
    sys.modules.pop("learner")


def compiled(learner: Any, policy: HostOffload | None) -> tuple[Any, int]:
    """The step, and the bytes of all parameters."""
    mesh = Mesh.for_target(TARGET, (N_CHIPS,), ("fsdp",))
    model = learner.Gpt(N_LAYERS, width=WIDTH, again="around").to("pjrt")
    fully_shard(model, mesh=mesh, wrap=learner.Block, offload_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).logsumexp(-1).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    text = torch.empty(learner.BATCH, learner.LENGTH, dtype=torch.int64, device="meta")
    found = torch_pjrt.compile_for(TARGET, step, distribute_tensor(text, mesh, ("fsdp",)))
    return found, sum(p.nbytes for p in model.parameters())


def needs(found: Any) -> int:
    """Of a chip, without the program's own code."""
    return found.memory_bytes - found.code_bytes


def test_a_chip_needs_less_where_parts_lie_in_the_hosts_memory(
    learner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_pjrt.config, "roll_layers", "on")

    on_chips, n_bytes = compiled(learner, None)
    on_host, _ = compiled(learner, HostOffload())

    own = n_bytes // N_CHIPS
    assert on_chips.host_bytes == 0
    assert on_chips.argument_bytes > 3 * own
    assert 3 * own * 0.95 < on_host.host_bytes < 3 * own * 1.05  # parameters and two moments
    assert on_host.argument_bytes < own / 10
    assert needs(on_host) < needs(on_chips) - own
