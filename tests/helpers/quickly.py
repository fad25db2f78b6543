"""For folders of tests that ask what is recorded, spread and kept, not how well XLA's code computes.

With `from quickly import compiled_quickly` in their `conftest.py`, or in a file for its tests alone, XLA
takes a tenth of the time, in processes that they start, too. Two kinds of tests have programs that are
compiled as users' are: those that are `slow`, and all where compilers for TPUs or GPUs are installed, for
which the options are not.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from torch_pjrt import config
from torch_pjrt.options import COMPILE
from torch_pjrt.testing.quick import quick_options

ON_CPU_ALONE = not any(map(find_spec, ("libtpu", "jax_cuda12_plugin", "jax_cuda13_plugin")))


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the process stand."""
    if ON_CPU_ALONE and request.node.get_closest_marker("slow") is None:
        options = {**quick_options(), **config.compile_options}
        monkeypatch.setattr(config, "compile_options", options)
        monkeypatch.setenv(COMPILE, ",".join(f"{k}={v}" for k, v in options.items()))
