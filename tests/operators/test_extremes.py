"""Pointwise operators end on extreme numbers, with what the CPU gives.

A loop that values end may never do so: each kind runs in a process of its own, with a time limit.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import warm
from hangs import HANGS_S
from torch_pjrt.testing.child import environment

KINDS = (
    "pointwise.special",
    "pointwise.binary",
    "pointwise.polynomial",
    "pointwise.activation",
    "pointwise.bessel",
    "pointwise.bitwise",
    "pointwise.compare",
    "pointwise.complex",
    "pointwise.ternary",
    "pointwise.unary",
    "prims",
    "random",
    "reparameterization",
)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", KINDS)
def test_operators_end_on_extreme_numbers_as_on_the_cpu(kind: str) -> None:
    script = str(Path(__file__).parents[1] / "helpers" / "extreme_numbers.py")
    try:
        done = warm.run([script, kind], environment(quick=True), timeout=HANGS_S)
    except subprocess.TimeoutExpired:
        pytest.fail(
            f"{kind}: an operator did not end; `{sys.executable} {script} {kind}` says which"
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
