"""Runs the command of PyTorch's distributed tests, and reads what it has written of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def run_suite(
    folder: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
    """The command, which has ended, and the outcome of each test, by `file::name`."""
    results = folder / "results.jsonl"
    command = ["-m", "torch_pjrt_spmd.testing.distributed_suite", *arguments]
    run = subprocess.run(
        [sys.executable, *command, "--results", str(results)],
        check=False,
        env={**os.environ, "TORCH_PJRT_CACHE_DIR": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    found = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    return run, {result["test"]: result["outcome"] for result in found}
