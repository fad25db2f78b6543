"""A package of ours costs nothing where no device is used: its plugin imports neither JAX nor Dynamo."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

PLUGINS = {entry.name: entry.value for entry in entry_points(group="torch_pjrt")}
# One process for all: what one imports is there at the next one, too, and is told of the first.
SCRIPT = """
import importlib, sys, torch
for module in sys.argv[1:]:
    importlib.import_module(module)
    for heavy in ("jax", "torch._dynamo", "torch._inductor", "scipy", "numba", "torchao"):
        assert heavy not in sys.modules, f"{module} imports {heavy}"
"""


def test_ours_are_installed_here() -> None:
    assert {"cpu", "fsdp", "gpu", "kernels", "quant", "tpu"} <= set(PLUGINS)


def test_plugins_are_light() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *PLUGINS.values()],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
