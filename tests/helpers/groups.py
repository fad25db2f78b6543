"""Tests of one `xdist_group` run on one worker, with `--dist loadgroup`.

pytest-xdist finds a group at the end of a test's name, where it puts it itself: until 3.8 into an attribute
that pytest 9.2 no longer has.
"""

from __future__ import annotations

from typing import Any

import pytest


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Put it there."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        named: Any = getattr(item, "_id", None)
        if mark and named is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(named).parse(f"{item.nodeid}@{mark.args[0]}")  # type: ignore[attr-defined]
