"""For folders of tests that ask what is recorded, spread and kept, not how well XLA's code computes.

With `from quickly import compiled_quickly` in their `conftest.py`, programs are compiled in half of the time,
but for tests that are `slow`: those have programs that are compiled as users' are.
"""

from __future__ import annotations

import pytest

from torch_pjrt import config
from torch_pjrt.testing.quick import quick_options


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the process stand."""
    if request.node.get_closest_marker("slow") is None:
        options = {**quick_options(), **config.compile_options}
        monkeypatch.setattr(config, "compile_options", options)
