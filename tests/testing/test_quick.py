"""Options for quick compilations are those that the installed jaxlib has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torch_pjrt.testing import quick


def test_xla_takes_them() -> None:
    """It ends a process whose XLA_FLAGS name another."""
    environment = {**os.environ, "XLA_FLAGS": quick.quick_flags()}
    code = "import jax; print(jax.jit(lambda x: x + 1)(1))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\n", done.stderr


def test_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"xla_backend_optimization_level": 0, "xla_no_such_option_in_any_version": True}
    monkeypatch.setattr(quick, "_OPTIONS", options)
    assert quick.quick_options.__wrapped__() == {"xla_backend_optimization_level": 0}
