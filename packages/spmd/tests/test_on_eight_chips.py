"""The tests in `eight_chips/`, in a few processes that have eight virtual chips. To run a file by itself:

XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest packages/spmd/tests/eight_chips/test_marking.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from on_chips import run_on_eight_chips

FOLDER = Path(__file__).parent / "eight_chips"
# To start one costs as much as some of the files do.
N_PROCESSES = 2


@pytest.mark.parametrize("process", range(N_PROCESSES))
def test_files_pass_on_eight_chips(process: int, pytestconfig: pytest.Config) -> None:
    run_on_eight_chips(FOLDER, process, N_PROCESSES, pytestconfig)
