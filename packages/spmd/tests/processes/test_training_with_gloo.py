"""DDP, FSDP, DTensor, pipelines and checkpoints, unmodified, train as they do by gloo on CPU tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from several import run

# Ways of DDP that run each day: buckets, parameters without gradients, a hook that changes what is exchanged.
EVERY_DAY = ("DDP, small buckets", "DDP, unused parameters", "DDP, hook: fp16_compress")


def _cases(n: int, *arguments: str) -> list[tuple[str, Any, Any]]:
    """Each case of each rank: its name, what gloo gave and what the device gave."""
    cases = []
    for rank, ended in enumerate(run("training_with_gloo.py", n, *arguments)):
        assert ended.status == 0, ended.err
        lines = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
        cases += [(f"{line['case']} (rank {rank})", line["cpu"], line["pjrt"]) for line in lines]
    return cases


def _wrong(cases: list[tuple[str, Any, Any]]) -> list[Any]:
    """Those whose numbers differ by more than 1e-5 of them, or that failed."""
    return [case for case in cases if not isinstance(case[1], list) or not _close(*case[1:])]


def _close(expected: list[float], seen: Any) -> bool:
    return isinstance(seen, list) and seen == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_ddp_on_two_processes_has_the_losses_of_ddp_by_gloo():
    cases = _cases(2, *EVERY_DAY)

    assert _wrong(cases) == []
    assert len(cases) == 2 * len(EVERY_DAY)


@pytest.mark.slow("file")
def test_everything_on_two_processes_trains_as_by_gloo():
    cases = _cases(2)

    assert _wrong(cases) == []
    assert len(cases) == 2 * 23


@pytest.mark.slow("file")
def test_everything_on_four_processes_trains_as_by_gloo():
    cases = _cases(4)

    assert _wrong(cases) == []
    assert len(cases) == 4 * 23
