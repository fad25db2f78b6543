"""The tests in `eight_chips/`, in a process that has eight virtual chips. To run a file by itself, set
XLA_FLAGS=--xla_force_host_platform_device_count=8
"""

from __future__ import annotations

from pathlib import Path

import pytest

from on_chips import run_on_eight_chips


def test_files_pass_on_eight_chips(pytestconfig: pytest.Config) -> None:
    run_on_eight_chips(Path(__file__).parent / "eight_chips", 0, 1, pytestconfig)
