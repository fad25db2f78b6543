"""A run that torchrun starts again goes on from its checkpoint: no batch is lost, none is counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from elastic_run import SAVED_EVERY, STEPS, run, samples_of, weights_without_a_restart

DEATH = 7


@pytest.mark.slow
def test_a_killed_run_goes_on_where_its_checkpoint_is(tmp_path: Path):
    done = run(tmp_path, DEATH)

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
    torch.testing.assert_close(weights, weights_without_a_restart(), rtol=1e-5, atol=1e-6)
