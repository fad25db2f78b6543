"""Random programs, and random plans in float64, give what they give by gloo on CPU tensors.

Programs have collectives, views and writes in place; plans are of tensor and sequence parallel.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from several import run

# The script, by how many processes, from which number on, how many; and what it says.
ROWS: list[tuple[str, int, int, int, dict[str, Any]]] = [
    ("random_programs.py", 2, 0, 3, {"programs": 3, "failed": []}),
    ("random_programs.py", 2, 3, 5, {"programs": 5, "failed": []}),
    ("random_programs.py", 4, 1000, 6, {"programs": 6, "failed": []}),
    ("random_plans.py", 2, 0, 4, {"plans": 4, "refused": 0, "failed": []}),
    ("random_plans.py", 4, 1000, 3, {"plans": 3, "refused": 0, "failed": []}),
]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("script", "n", "first", "count", "expected"), ROWS)
def test_what_is_random_is_as_with_gloo(
    script: str, n: int, first: int, count: int, expected: dict[str, Any]
):
    for ended in run(script, n, str(first), str(count)):
        assert ended.status == 0, ended.err
        assert json.loads(ended.out.splitlines()[-1]) == expected
