"""`pytest --pjrt-device NAME` runs the suite for authors of devices and ends with a table of what works."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points


def test_suite_runs_on_the_named_device_and_tells_what_works() -> None:
    known = {e.value for e in entry_points(group="pytest11")}
    plugin = "torch_pjrt.testing.pytest_plugin"
    load = [] if plugin in known else ["-p", plugin]
    options = ["--pjrt-device", "CPU", "--pjrt-operators", "tril", "-p", "no:cacheprovider"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}

    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *load, *options),
            *("--pyargs", "torch_pjrt.testing.device_suite"),
        ],
        capture_output=True,
        text=True,
        env={**env, "TORCH_PJRT_CACHE_DIR": ""},
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "What works on CPU" in done.stdout
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    for kind in ("aliasing", "donation", "memory", "threads", "forward float32"):
        assert rows[kind] == ["1"], done.stdout
