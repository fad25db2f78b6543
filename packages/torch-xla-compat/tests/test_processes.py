"""`launch` and `spawn`: functions in two processes, which exchange by torch_xla's names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_pjrt.errors import UnsupportedError
from torch_pjrt_spmd import LaunchError

FOLDER = Path(__file__).parent / "processes"


@pytest.fixture(autouse=True)
def cases(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(FOLDER), *filter(None, sys.path)]))
    monkeypatch.setenv("CPU_NUM_DEVICES", "2")
    import two_processes

    return two_processes


def test_two_processes_exchange_train_as_one_and_save_a_sharded_model(
    cases: Any, tmp_path: Path
) -> None:
    xmp.spawn(cases.all_three, ("word", str(tmp_path)), nprocs=2)


@pytest.mark.slow
def test_the_backend_xla_is_for_ddp(cases: Any) -> None:
    torch_xla.launch(cases.data_parallel)


def test_a_failure_names_its_rank(cases: Any) -> None:
    with pytest.raises(LaunchError, match="Rank 1 of 2 failed: ValueError: rank 1 cannot"):
        torch_xla.launch(cases.failing)


@pytest.mark.slow
def test_under_torchrun_launch_calls_the_function_itself() -> None:
    script = FOLDER / "under_torchrun.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-port=0",
    ]

    done = subprocess.run(
        [*command, "--standalone", str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-3000:]


def test_one_process_is_this_one() -> None:
    seen: list[Callable[..., Any] | int] = []

    xmp.spawn(lambda index, more: seen.extend([index, more]), (7,), nprocs=1)
    torch_xla.launch(seen.append, debug_single_process=True)

    assert seen == [0, 7, 0]


def test_processes_are_waited_for() -> None:
    with pytest.raises(UnsupportedError, match="join=False"):
        xmp.spawn(print, nprocs=2, join=False)
