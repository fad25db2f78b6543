"""For all tests of all packages: programs are compiled in this run, and not loaded from an earlier one."""

from __future__ import annotations

import importlib.util
import os

os.environ["TORCH_PJRT_CACHE_DIR"] = ""

# Of tests/helpers/, found by the `pytest.ini` beside this file alone.
pytest_plugins = ("turns", "groups", "settled") if importlib.util.find_spec("turns") else ()
