"""A package of ours costs nothing where no device is used: its plugin imports neither JAX nor Dynamo."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

PLUGINS = {entry.name: entry.value for entry in entry_points(group="torch_pjrt")}
HEAVY = ("jax", "torch._dynamo", "torch._inductor", "scipy", "numba", "torchao")


def test_ours_are_installed_here() -> None:
    assert {"cpu", "fsdp", "gpu", "kernels", "quant", "tpu"} <= set(PLUGINS)


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_is_light(name: str) -> None:
    code = f"""
import sys, torch
import {PLUGINS[name]}
assert not set({HEAVY!r}) & set(sys.modules), set({HEAVY!r}) & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
