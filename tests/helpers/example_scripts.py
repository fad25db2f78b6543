"""Runs a script of `examples/` as a user does, and gives what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from torch_pjrt.testing.quick import quick_flags

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(*command: str, chips: int = 1, launcher: tuple[str, ...] = ()) -> str:
    """What a script prints, which ends well; `launcher` is what stands between Python and the script."""
    flags = f"{quick_flags()} --xla_force_host_platform_device_count={chips}"
    done = subprocess.run(
        [sys.executable, *launcher, *command],
        cwd=EXAMPLES,
        env={**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "USE_TORCH_XLA": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
