"""These tests need eight chips; `test_on_eight_chips.py` runs them in a process that has them."""

from __future__ import annotations

from on_chips import HAS_EIGHT_CHIPS, no_mesh_is_left, uploads
from quickly import compiled_quickly

collect_ignore_glob = [] if HAS_EIGHT_CHIPS else ["test_*.py"]

__all__ = ["compiled_quickly", "no_mesh_is_left", "uploads"]
