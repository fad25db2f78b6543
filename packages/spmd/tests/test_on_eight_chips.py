"""The tests in `eight_chips/`, each file in a process of its own that has eight virtual chips.

How many chips there are is decided when XLA's client starts, so it cannot be done in the process of the
other tests. To run a file by itself:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest packages/spmd/tests/eight_chips/test_marking.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "eight_chips"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_file_passes_on_eight_chips(file: str, pytestconfig: pytest.Config) -> None:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    part = pytestconfig.getoption("--part", None)
    # By the folder, not the file: slow tests of a file that is named do not take turns.
    options = ["-q", "-p", "no:cacheprovider", str(FOLDER), "-k", file.removesuffix(".py")]
    options += ["--part", part] if part else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        env={**os.environ, "XLA_FLAGS": flags, "PJRT_DEVICE": "CPU"},
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-20_000:]


def test_there_are_files() -> None:
    assert len(FILES) >= 4
