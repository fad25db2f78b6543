"""Two processes with Transformers' `Trainer` train as one does with the whole batch, by DDP and by FSDP2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from several import run

SCRIPT = Path(__file__).parent / "trained.py"


def said_by(n: int, *arguments: str) -> list[dict[str, Any]]:
    """What each of n processes printed."""
    found = []
    for ended in run(str(SCRIPT), n, *arguments):
        assert ended.status == 0, ended.err
        found.append(json.loads(ended.out.splitlines()[-1]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_as_one_does(way: str) -> None:
    two = said_by(2, way)
    (one,) = said_by(1, "alone")

    for rank, seen in enumerate(two):
        assert (seen["rank"], seen["of"], seen["device"]) == (rank, 2, "pjrt:0")
        for what in ("losses", "evaluated", "weights"):
            assert seen[what] == pytest.approx(one[what], rel=1e-5), what
        assert seen["held"] == one["held"] // (2 if way == "fsdp" else 1)
        assert [s for i, s in enumerate(seen["steps"][2:], 3) if i % 6] == [[0, 1, 0]] * 8
        assert seen["fallbacks"] == 0
