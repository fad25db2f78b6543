"""What is damaged, cannot be written, or could not be loaded again is an error that says what is at fault."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import warm
from torch_pjrt_fsdp import CheckpointManager, load_checkpoint, save_checkpoint
from torch_pjrt_fsdp.checkpoint import saving
from torch_pjrt_spmd import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def damaged(folder: Path, name: str, at: int) -> None:
    content = bytearray((folder / name).read_bytes())
    content[at] ^= 1
    (folder / name).write_bytes(content)


def test_a_changed_bit_is_found_with_file_and_tensor(tmp_path: Path) -> None:
    state = {"first": torch.arange(1000.0), "second": torch.arange(1000.0), "more": [1, 2]}
    folder = tmp_path / "a"
    save_checkpoint(state, folder)
    index = json.loads((folder / "checkpoint.json").read_text())["index"]
    [where] = [e["at"] for e in index["entries"] if e["name"] == "second"]
    damaged(folder, "__0_0.distcp", where + 77)

    load_checkpoint({"first": torch.zeros(1000)}, folder)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp\n.*'second'"):
        load_checkpoint({"second": torch.zeros(1000, device="pjrt")}, folder)
    load_checkpoint({"second": torch.zeros(1000)}, folder, verify=False)

    [where] = [e["begin"] for e in index["entries"] if e["name"] == "more"]
    damaged(folder, "__0_0.distcp", where + 50)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp\n.*'more'"):
        load_checkpoint({"more": None}, folder)
    damaged(folder, "checkpoint.json", 60)
    with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
        load_checkpoint(state, folder)


def test_a_file_that_is_short_or_gone_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    save_checkpoint({"x": torch.arange(1000.0)}, folder)
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp\n.* bytes\n.* bytes"):
        load_checkpoint({"x": torch.zeros(1000)}, folder)
    file.unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        load_checkpoint({"x": torch.zeros(1000)}, folder)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        load_checkpoint({"x": torch.zeros(1000)}, tmp_path / "b")


class Odd:
    """What `weights_only=True` does not load."""


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'a\.odd' could not be loaded again"):
        save_checkpoint({"a": {"odd": Odd(), "x": torch.ones(2)}}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="on meta"):
        save_checkpoint({"x": torch.ones(2, device="meta")}, tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"is 1\.5\.\n.*float.*\n.*a whole number"):
        save_checkpoint({"a": {1.5: 1}}, tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"the name 'a\.b'"):
        save_checkpoint({"a": {"b": 1}, "a.b": 2}, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_the_writing_process_may_die(tmp_path: Path) -> None:
    state = {"x": torch.ones(4)}
    with saving.Saver(tmp_path) as saver:
        saver.save("step-1", state)
        saver.wait()
        process: Any = saver._writer._process  # type: ignore[union-attr]
        process.send_signal(signal.SIGSTOP)
        saver.save("step-2", state)
        saver._handing_over.result()
        process.kill()
        with pytest.raises(CheckpointError, match=r"`step-2` could not be written.*\n.*status -9"):
            saver.wait()
        saver.save("step-3", state)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"]


def test_what_cannot_be_written_is_an_error_of_the_next_save(tmp_path: Path) -> None:
    """A file that may not grow beyond so many bytes is as good as a full disk."""
    state = {"x": torch.ones(1 << 16)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": torch.ones(4)})
        manager.wait()
        process: Any = manager._saver._writer._process  # type: ignore[union-attr]
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

        manager.save(2, state)

        with pytest.raises(
            CheckpointError, match=r"`step-2` could not be wri(.*\n)*.*File too large"
        ):
            manager.save(3, state)
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


_UNATTENDED = """
import torch
from torch_pjrt_fsdp import CheckpointManager
manager = CheckpointManager("/proc/nowhere", random=False, preemption=None)
manager.save(1, {"x": torch.ones(2)})
"""


def test_a_process_that_ends_without_waiting_says_what_failed() -> None:
    done = warm.run(["-c", _UNATTENDED], os.environ, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "CheckpointError: The checkpoint `step-1` could not be written." in done.stderr
    assert "No such file or directory: '/proc/nowhere'" in done.stderr
