"""Packages that a test installs from their sources, as users do, but into a folder and with no index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def install(source: Path, target: Path) -> Path:
    """Have pip build the package of `source` by its own build backend, and put it into `target`."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    done = subprocess.run(
        [*pip, *options, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target
