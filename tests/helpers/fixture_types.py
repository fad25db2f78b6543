"""The types of what the fixtures of `tests/conftest.py` give."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Count = Callable[[], int]
"""What `compiled` is: how many programs were compiled since the test began."""

Run = Callable[..., subprocess.CompletedProcess[str]]
"""What `python` is: it runs a script in a process of its own."""
