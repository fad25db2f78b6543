"""Two processes with Lightning train as one does with the whole batch, and resume, by DDP and by FSDP2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from several import run

SCRIPT = Path(__file__).parent / "lightning_trained.py"


def said_by(n: int, *arguments: str) -> list[dict[str, Any]]:
    """What each of n processes printed."""
    found = []
    for ended in run(str(SCRIPT), n, *arguments):
        assert ended.status == 0, ended.err
        found.append(json.loads(ended.out.splitlines()[-1]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "strategy", "name"),
    [
        ("trainer", "auto", "pjrt_ddp"),
        ("trainer", "pjrt_fsdp", "pjrt_fsdp"),
        ("layers", "pjrt_fsdp", "pjrt_fsdp"),
        ("fabric", "ddp", "pjrt_ddp"),
        ("fabric", "fsdp", "pjrt_fsdp"),
    ],
)
def test_two_processes_train_as_one_does(
    way: str, strategy: str, name: str, tmp_path: Path
) -> None:
    two = said_by(2, way, strategy, str(tmp_path / "two"))
    (one,) = said_by(1, way.replace("layers", "trainer"), "auto", str(tmp_path / "one"))

    for rank, seen in enumerate(two):
        assert (seen["rank"], seen["device"], seen["strategy"]) == (rank, "pjrt:0", name)
        for what in {"losses", "weights", "resumed", "validation"} & seen.keys():
            assert seen[what] == pytest.approx(one[what], rel=1e-5), what
        assert seen.get("resumed", seen["losses"][4:]) == pytest.approx(
            seen["losses"][4:], rel=1e-6
        )
        assert seen["held"] == one["held"] // (2 if name == "pjrt_fsdp" else 1)
        cost = [0, 1, 0] if way == "fabric" else [1, 1, 0]
        assert seen["steps"][-3:] == [cost] * 3  # the first of them behind a validation
        assert seen["fallbacks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["trainer", "fabric"])
def test_chips_of_a_process_train_as_one_does(way: str) -> None:
    script = str(SCRIPT.with_name("spmd_trained.py"))
    found = []
    for chips in (4, 1):
        [ended] = run(script, 1, way, chips=chips)
        assert ended.status == 0, ended.err
        found.append(json.loads(ended.out.splitlines()[-1]))
    four, one = found

    assert four["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert four["chips"] == [4]
    assert one["chips"] == [1]
    assert four["device"] == "pjrt:0"
    assert four["steps"][-3:] == [[0, 1, 0]] * 3
