"""These tests need eight chips; `test_on_eight_chips.py` runs them in a process that has them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

if "--xla_force_host_platform_device_count=8" not in os.environ.get("XLA_FLAGS", ""):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def no_mesh_is_left() -> Iterator[None]:
    """A test that uses a mesh leaves none to the next."""
    yield
    from torch_pjrt_spmd import use_mesh

    use_mesh(None)
