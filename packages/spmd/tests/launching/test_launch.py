"""`launch` gives each rank's result or the first error, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import jobs
import pytest
import torch

import torch_pjrt_spmd
from hangs import HANGS_S
from torch_pjrt_spmd.launching import local, passing

needs_cloudpickle = pytest.mark.skipif(
    find_spec("cloudpickle") is None, reason="cloudpickle is not installed"
)


def numbers_in(folder: Path, count: int) -> list[int]:
    """What `count` processes have written down, once all have."""
    end = time.monotonic() + HANGS_S
    while len(found := [f for f in folder.iterdir() if f.read_text()]) < count:
        assert time.monotonic() < end
        time.sleep(0.05)
    return [int(number) for file in found for number in file.read_text().split()]


def script(folder: Path, text: str) -> subprocess.Popen[str]:
    file = folder / "script.py"
    file.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_ranks_compute_together_and_give_results_in_order(
    capfd: pytest.CaptureFixture[str],
) -> None:
    results = torch_pjrt_spmd.launch(
        jobs.summed, 2, (torch.tensor([1.0, 2.0]),), environment={"HOME": "/elsewhere"}
    )

    assert [r["rank"] for r in results] == [0, 1]
    assert [r["LOCAL_RANK"] for r in results] == ["0", "1"]
    assert {(r["LOCAL_WORLD_SIZE"], r["HOME"]) for r in results} == {("2", "/elsewhere")}
    assert all(r["total"].device.type == "cpu" for r in results)
    assert all(torch.equal(r["total"], torch.tensor([3.0, 6.0])) for r in results)
    printed = capfd.readouterr().out
    assert "[0] rank 0 of 2\n" in printed and "[1] rank 1 of 2\n" in printed


def test_first_error_is_passed_on_and_all_others_end(
    tmp_path: Path, all_are_gone: Callable[[list[int]], None]
) -> None:
    begun = time.monotonic()
    with pytest.raises(torch_pjrt_spmd.LaunchError, match="Rank 1 of 2 failed") as raised:
        torch_pjrt_spmd.launch(jobs.failing, 2, (str(tmp_path),))

    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.rank == 1
    assert 'raise KeyError("no such layer")' in raised.value.traceback
    assert "worker.py" not in raised.value.traceback
    assert time.monotonic() - begun < HANGS_S / 2
    all_are_gone(numbers_in(tmp_path, 2))


def test_signal_and_exit_code_are_said() -> None:
    with pytest.raises(torch_pjrt_spmd.LaunchError, match=r"Rank 1 of 2 .* signal SIGKILL"):
        torch_pjrt_spmd.launch(jobs.killed, 2)
    with pytest.raises(torch_pjrt_spmd.LaunchError, match="SystemExit: 3"):
        torch_pjrt_spmd.launch(jobs.exits, 1, (3,))

    assert torch_pjrt_spmd.launch(jobs.exits, 1, (0,)) == [None]


def test_what_cannot_be_passed_is_an_error_with_a_hint() -> None:
    with pytest.raises(torch_pjrt_spmd.LaunchError, match="cannot be passed to other processes"):
        torch_pjrt_spmd.launch(jobs.exits, 1, (n for n in ()))  # pyright: ignore[reportArgumentType]
    with pytest.raises(torch_pjrt_spmd.LaunchError, match="cannot be passed to the launcher"):
        torch_pjrt_spmd.launch(jobs.a_lambda, 1)
    with pytest.raises(torch_pjrt_spmd.LaunchError, match="one process at least"):
        torch_pjrt_spmd.launch(jobs.exits, 0)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)],
    ids=["Ctrl-C", "killed"],
)
def test_no_process_outlives_its_launcher(
    tmp_path: Path, all_are_gone: Callable[[list[int]], None], number: signal.Signals
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    launcher = script(
        tmp_path,
        f"import jobs, torch_pjrt_spmd\ntorch_pjrt_spmd.launch(jobs.waiting, 2, ({str(notes)!r},))",
    )
    numbers = numbers_in(notes, 2)

    launcher.send_signal(number)
    printed, _ = launcher.communicate(timeout=HANGS_S)

    all_are_gone(numbers)
    assert ("KeyboardInterrupt" in printed) == (number == signal.SIGINT)


SCRIPT = """
import sys
{first}
import torch_pjrt_spmd

class Answer:
    def __init__(self, value):
        self.value = value

def work(n):
    return Answer(n * 2)

{guard}
    print([type(answer) is Answer and answer.value for answer in torch_pjrt_spmd.launch(work, 2, (21,))])
"""
GUARD = 'if __name__ == "__main__":'
WITHOUT = "sys.modules['cloudpickle'] = None"


@pytest.mark.slow
@needs_cloudpickle
def test_functions_of_a_script_or_notebook_go_as_they_are_with_cloudpickle(tmp_path: Path) -> None:
    printed, _ = script(tmp_path, SCRIPT.format(first="", guard="if True:")).communicate(
        timeout=HANGS_S
    )
    assert "[42, 42]" in printed, printed

    typed = "exec(compile('''{}''', '<cell>', 'exec'), globals())\n"  # names of no file
    cell = typed.format(SCRIPT.format(first="", guard="if True:"))
    printed, _ = script(tmp_path, cell).communicate(timeout=HANGS_S)
    assert "[42, 42]" in printed, printed


@pytest.mark.slow
def test_functions_of_a_script_go_under_its_guard_without_cloudpickle(tmp_path: Path) -> None:
    text = SCRIPT.format(first=WITHOUT, guard=GUARD).replace("return Answer(n * 2)", "return n * 2")
    text = text.replace("type(answer) is Answer and answer.value", "answer")
    printed, _ = script(tmp_path, text).communicate(timeout=HANGS_S)
    assert "[42, 42]" in printed, printed

    printed, _ = script(tmp_path, text.replace(GUARD, "if True:")).communicate(timeout=HANGS_S)
    assert "`launch` is called by the script while" in printed, printed


def test_functions_of_a_notebook_need_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "cloudpickle", lambda: None)
    monkeypatch.setattr(local, "cloudpickle", lambda: None)
    monkeypatch.setattr(local.spawn, "get_preparation_data", lambda name: {"sys_argv": []})
    monkeypatch.setattr(jobs.exits, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "exits", jobs.exits, raising=False)

    with pytest.raises(torch_pjrt_spmd.LaunchError, match="pip install cloudpickle"):
        torch_pjrt_spmd.launch(jobs.exits, 1, (0,))


def test_failure_that_follows_from_another_is_not_the_first() -> None:
    from torch_pjrt_spmd.distributed import PeerError

    early = passing.failure_of(0, 1.0, PeerError("Rank 1 did not come."))
    late = passing.failure_of(1, 2.0, ValueError("no good"))

    assert passing.first_of([early, late]) is late
