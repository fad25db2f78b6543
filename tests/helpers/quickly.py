"""For folders of tests that ask what is recorded, spread and kept, not how well XLA's code computes.

With `from quickly import compiled_quickly` in their `conftest.py`, or in a file for its tests alone, XLA
takes a tenth of the time, in processes that they start, too. Two kinds of tests have programs that are
compiled as users' are: those that are `slow` and do not run each day, and all where compilers for TPUs or
GPUs are installed, for which the options are not.
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
    if ON_CPU_ALONE and _runs_each_day(request.node):
        options = {**quick_options(), **config.compile_options}
        monkeypatch.setattr(config, "compile_options", options)
        monkeypatch.setenv(COMPILE, ",".join(f"{k}={v}" for k, v in options.items()))


def _runs_each_day(test: pytest.Item) -> bool:
    """Also the first row of a table that is `slow("rows")`."""
    mark = test.get_closest_marker("slow")
    if mark is None or mark.args != ("rows",):
        return mark is None
    table = test.nodeid.partition("[")[0]
    return test is next(i for i in test.session.items if i.nodeid.partition("[")[0] == table)
