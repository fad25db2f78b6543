"""Nobody takes from a package what `from __future__ import` may have left there under the same name.

`from package import annotations` gives Python's feature until somebody has imported `package.annotations`:
which of the two it is, the order of imports decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[3]
FILES = [f for folder in ("src", "tests") for f in PACKAGES.glob(f"*/{folder}/**/*.py")]
FEATURE = "annotations"  # the one that is in use


def taken(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (a.name for a in node.names if a.name == FEATURE)


def test_nobody_takes_a_name_that_is_a_future_feature() -> None:
    assert FILES
    assert [str(f) for f in FILES if any(taken(f.read_text()))] == []


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ("from torch_pjrt import annotations", 1),
        ("from . import annotations as a", 1),
        ("from torch_pjrt.annotations import x", 0),
        ("from __future__ import annotations", 0),
    ],
)
def test_sweep_sees_such_names(source: str, n: int) -> None:
    assert len(list(taken(source))) == n
