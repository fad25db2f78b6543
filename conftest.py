"""For all tests of all packages: programs are compiled in this run, and not loaded from an earlier one."""

from __future__ import annotations

import os

os.environ["TORCH_PJRT_CACHE_DIR"] = ""
