"""Two processes with `Accelerator()` train as one does with the whole batch, on parts of the rows each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from several import free_port, run

from torch_pjrt.testing.quick import quick_flags

SCRIPT = Path(__file__).parent / "losses.py"


def said_by(n: int, *arguments: str) -> list[dict[str, Any]]:
    """What each of n processes printed."""
    found = []
    for ended in run(str(SCRIPT), n, *arguments):
        assert ended.status == 0, ended.err
        found.append(json.loads(ended.out.splitlines()[-1]))
    return found


def assert_like_one(two: list[dict[str, Any]], one: dict[str, Any], rtol: float = 1e-5) -> None:
    """Losses, weights and the evaluation are those of one process, and each process saw half the rows."""
    for rank, seen in enumerate(two):
        assert (seen["rank"], seen["of"], seen["device"]) == (rank, 2, "pjrt:0")
        assert seen["losses"] == pytest.approx(one["losses"], rel=rtol)
        assert seen["weights"] == pytest.approx(one["weights"], rel=rtol)
        assert (seen["right"], seen["evaluated"]) == (one["right"], 32)
    first, second = (seen["sum of x"] for seen in two)
    assert first != second and first + second == pytest.approx(one["sum of x"], rel=1e-4)


def assert_cheap(two: list[dict[str, Any]]) -> None:
    """In steady state a step is one program, and reads nothing."""
    for seen in two:
        assert seen["steps"][2:] == [[0, 1, 0]] * (len(seen["steps"]) - 2)
        assert seen["fallbacks"] == 0


@pytest.mark.slow("rows")
@pytest.mark.parametrize("accumulated", ["1", "2"])
def test_two_processes_have_the_losses_of_one_with_the_whole_batch(accumulated: str) -> None:
    two = said_by(2, accumulated, "no")
    (one,) = said_by(1, accumulated, "no")

    assert_like_one(two, one)
    assert_cheap(two)
    assert {seen["kind"] for seen in two} == {"DistributedDataParallel"}


@pytest.mark.slow
def test_fsdp2_in_two_processes_has_the_losses_of_one_and_half_of_its_parameters() -> None:
    two = said_by(2, "1", "no", "fsdp2")
    (one,) = said_by(1, "1", "no")

    assert_like_one(two, one)
    assert_cheap(two)
    assert [seen["held"] for seen in two] == [one["held"] // 2] * 2


@pytest.mark.slow
def test_fsdp1_is_refused() -> None:
    for ended in run(str(SCRIPT), 2, "1", "no", "fsdp1"):
        assert ended.status != 0
        assert "Accelerate's FSDP1 is not supported on `pjrt`" in ended.err


@pytest.mark.slow
def test_bf16_in_two_processes_is_that_of_one() -> None:
    two = said_by(2, "1", "bf16")
    (one,) = said_by(1, "1", "bf16")

    assert_like_one(two, one, rtol=1e-2)
    assert_cheap(two)


@pytest.mark.slow
def test_accelerate_launch_starts_as_many_as_it_is_told() -> None:
    start = (
        "import torch; from torch_pjrt_ecosystem.autoload import autoload; autoload()\n"
        "from accelerate.commands.launch import main; main()"
    )
    options = ["--num_processes", "2", "--main_process_port", str(free_port())]
    done = subprocess.run(
        [sys.executable, "-c", start, *options, str(SCRIPT), "1", "no"],
        env={
            **os.environ,
            "USE_TORCH_XLA": "0",
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": quick_flags(),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted((s["rank"], s["of"]) for s in said) == [(0, 2), (1, 2)]
