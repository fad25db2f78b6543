"""Whatever is asked of the device, the process lives: an unsupported thing raises.

The table of what is asked is `helpers/odd_tensors.py`. It runs in a child; if that dies, another goes on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import odd_tensors

SCRIPT = Path(odd_tensors.__file__)


def run_from(position: int) -> tuple[list[str], int, str]:
    """Names of what a child began, its exit status, and what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), str(position)],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCH_PJRT_CACHE_DIR": ""},
        timeout=300,
        check=False,
    )
    begins = "begins "
    lines = done.stdout.splitlines()
    began = [line.removeprefix(begins) for line in lines if line.startswith(begins)]
    return began, done.returncode, done.stderr


@pytest.mark.slow
def test_nothing_ends_the_process() -> None:
    dead: list[str] = []
    position = 0
    while position < len(odd_tensors.ODD):
        began, status, said = run_from(position)
        assert began, said
        position += len(began)
        if status:
            dead.append(f"{began[-1]} (exit status {status})")

    assert not dead, "\n".join(dead)


def test_storages_made_by_python_hold_what_they_are_given(python) -> None:  # type: ignore[no-untyped-def]
    python(
        """
import torch
storage = torch.UntypedStorage([1, 0, 0, 0], device="pjrt")
assert storage.device == torch.device("pjrt", 0) and storage.tolist() == [1, 0, 0, 0]
assert torch.empty(0, dtype=torch.int32, device="pjrt").set_(storage).tolist() == [1]
assert torch.UntypedStorage(3, device="pjrt").tolist() == [0, 0, 0]
assert torch.ones(2).untyped_storage().to(device="pjrt").device.type == "pjrt"
"""
    )
