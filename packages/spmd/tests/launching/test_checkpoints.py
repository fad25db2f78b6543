"""A checkpoint is there as a whole, or not at all; the last ones stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt_spmd.launching.checkpoints import (
    Checkpoint,
    checkpoints,
    last_checkpoint,
    new_checkpoint,
)


def write(folder: Path, step: int, keep: int = 2) -> None:
    with new_checkpoint(folder, step, keep=keep) as path:
        (path / "model").write_text(f"{step}")


def test_last_one_is_that_of_the_highest_step(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    for step in (8, 9, 10):
        write(tmp_path, step)

    assert last_checkpoint(tmp_path) == Checkpoint(10, tmp_path / "step-10")
    assert [one.step for one in checkpoints(tmp_path)] == [9, 10]
    assert (tmp_path / "step-10/model").read_text() == "10"


def test_one_that_was_not_finished_is_none_and_is_written_anew(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(KeyError), new_checkpoint(tmp_path, 2) as path:
        (path / "model").touch()
        raise KeyError
    assert last_checkpoint(tmp_path) == Checkpoint(1, tmp_path / "step-1")

    write(tmp_path, 2, keep=1)

    assert [one.name for one in tmp_path.iterdir()] == ["step-2"]
    with pytest.raises(SettingError):
        write(tmp_path, 3, keep=0)
