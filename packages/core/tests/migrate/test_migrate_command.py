"""`python -m torch_pjrt migrate` prints what would change, and changes it with `--write`."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_pjrt.cli import main

SCRIPT = "import torch_xla.core.xla_model as xm\nxm.mark_step()\n"
BY_HAND = "import torch_xla.core.xla_model as xm\nxm.all_to_all(t)\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_the_difference_is_printed_and_nothing_written(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", str(script)]) == 0

    printed = capsys.readouterr().out
    assert "-xm.mark_step()\n" in printed
    assert "+torch_pjrt.sync()\n" in printed
    assert script.read_text() == SCRIPT


def test_files_are_written_on_demand(script: Path) -> None:
    assert main(["migrate", "--write", str(script)]) == 0
    assert script.read_text() == "import torch_pjrt\ntorch_pjrt.sync()\n"
    assert main(["migrate", "--write", str(script)]) == 0
    assert script.read_text() == "import torch_pjrt\ntorch_pjrt.sync()\n"


def test_what_is_left_is_told_by_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(BY_HAND)

    assert main(["migrate", str(script)]) == 1
    assert (
        f"{script}:2: by hand: core.xla_model.all_to_all: `torch.distributed`"
        in capsys.readouterr().out
    )


def test_bytes_that_are_not_about_torch_xla_stay(script: Path) -> None:
    head, tail = b"# coding: latin-1\r\ns = '\xe9'\r\n", b"\r\nif x :  pass  # \xe9\r\n"
    script.write_bytes(head + b"import torch_xla\r\ntorch_xla.sync()" + tail)

    assert main(["migrate", "--write", str(script)]) == 0
    assert script.read_bytes() == head + b"import torch_pjrt\r\ntorch_pjrt.sync()" + tail


def test_one_unreadable_file_does_not_stop_the_others(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = script.with_name("broken.py")
    broken.write_text("def f(:")
    binary = script.with_name("binary.py")
    binary.write_bytes(b"\xff\xfe\x00")

    missing = script.with_name("missing.py")
    files = [str(path) for path in (broken, missing, script, binary)]
    assert main(["migrate", "--write", *files]) == 2
    assert "torch_pjrt.sync()" in script.read_text()
    said = capsys.readouterr().err
    for path, error in ((broken, "SyntaxError"), (missing, "FileNotFoundError"), (binary, "")):
        assert f"{path} cannot be read: {error}" in said


def test_a_file_that_starts_processes_tells_it_of_all(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text("import torch_xla.core.xla_model as xm\nxm.optimizer_step(o)\n")
    starter = script.with_name("start.py")
    starter.write_text("import torch_xla\ntorch_xla.launch(f)\n")

    assert main(["migrate", str(script)]) == 0
    assert main(["migrate", str(script), str(starter)]) == 1
    assert "DistributedDataParallel" in capsys.readouterr().out
