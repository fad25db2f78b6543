"""`pytest --pjrt-device NAME` runs the suite for authors of devices and ends with a table of what works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points

import pytest

pytestmark = pytest.mark.slow("file")


def suite(*paths: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The suite, or some of its modules, on the CPU."""
    known = {e.value for e in entry_points(group="pytest11")}
    plugin = "torch_pjrt.testing.pytest_plugin"
    load = [] if plugin in known else ["-p", plugin]
    options = ["--pjrt-device", "CPU", "--pjrt-operators", "tril", "-p", "no:cacheprovider"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}

    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *load, *options),
            *("--pyargs", *(f"torch_pjrt.testing.device_suite{path}" for path in paths)),
        ],
        capture_output=True,
        text=True,
        env={**env, "TORCH_PJRT_CACHE_DIR": "", **variables},
        timeout=500,
        check=False,
        cwd=tempfile.gettempdir(),  # where tests/conftest.py is not seen
    )


@pytest.mark.slow
def test_suite_runs_on_the_named_device_and_tells_what_works() -> None:
    done = suite("", XLA_FLAGS="--xla_force_host_platform_device_count=1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "What works on CPU" in done.stdout
    rows = {line[:20].strip(): line[20:].split() for line in done.stdout.splitlines()}
    for kind in ("donation", "threads", "programs", "random numbers", "forward float32"):
        assert rows[kind] == ["1"], done.stdout
    for kind in ("aliasing", "memory"):
        assert rows[kind] == ["2"], done.stdout
    assert "collectives: not run: one device" in done.stdout


def test_collectives_run_over_all_chips_where_there_are_several() -> None:
    done = suite(".test_collectives", XLA_FLAGS="--xla_force_host_platform_device_count=4")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed" in done.stdout
