"""Tests of one `xdist_group` run on one worker, with `--dist loadgroup`; the longest tests begin first.

Where one of minutes is the last, the other workers wait for it. The longest are those that run files on eight
chips, known by the name of their file.

pytest-xdist finds a group at the end of a test's name, where it puts it itself: until 3.8 into an attribute
that pytest 9.2 no longer has.
"""

from __future__ import annotations

from typing import Any

import pytest

LONGEST = "test_on_eight_chips.py"


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Put it there, and the longest to the front."""
    if not getattr(config.option, "loadgroup", False):
        return
    items.sort(key=lambda item: item.path.name != LONGEST)
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        named: Any = getattr(item, "_id", None)
        if mark and named is not None and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(named).parse(f"{item.nodeid}@{mark.args[0]}")  # type: ignore[attr-defined]
