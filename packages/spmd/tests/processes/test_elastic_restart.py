"""A run that torchrun starts again goes on from its checkpoint: no batch is lost, none is counted twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from elastic_run import BATCH, EPOCHS, N_SAMPLES, SAVED_EVERY, module_and_data, samples_of

SCRIPT = Path(__file__).parent / "elastic_run.py"
STEPS = EPOCHS * N_SAMPLES // (BATCH * 2)
DEATH = 7


def _weights_without_a_restart() -> torch.Tensor:
    """On the CPU, in one process, of both ranks' batches together."""
    module, data = module_and_data()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        module(data[samples_of(step, 0, 2) + samples_of(step, 1, 2)]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.slow
def test_a_killed_run_goes_on_where_its_checkpoint_is(tmp_path: Path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"),
            *(str(SCRIPT), str(tmp_path), str(DEATH)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    saved = DEATH - DEATH % SAVED_EVERY
    for rank in range(2):
        lines = (tmp_path / f"batches.{rank}").read_text().splitlines()
        batches = [tuple(map(int, line.split())) for line in lines]
        assert [step for attempt, step, *_ in batches if attempt == 0] == list(range(DEATH))
        assert [step for attempt, step, *_ in batches if attempt == 1] == list(range(saved, STEPS))
        # What the weights have seen: the first attempt's up to the checkpoint, and all of the second's.
        counted = [list(b[2:]) for b in batches if b[0] == 1 or b[1] < saved]
        assert counted == [samples_of(step, rank, 2) for step in range(STEPS)]
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    torch.testing.assert_close(weights, _weights_without_a_restart(), rtol=1e-5, atol=1e-6)
