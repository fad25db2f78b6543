"""Random programs of collectives, views and writes in place give what they give by gloo on CPU tensors."""

from __future__ import annotations

import json

import pytest
from several import run

# How many programs, from which number on, by how many processes.
PROGRAMS = [(2, 0, 8), (4, 1000, 6)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("n", "first", "count"), PROGRAMS)
def test_random_programs_are_as_with_gloo(n: int, first: int, count: int):
    for ended in run("random_programs.py", n, str(first), str(count), timeout_s=240):
        assert ended.status == 0, ended.err
        said = json.loads(ended.out.splitlines()[-1])
        assert said == {"programs": count, "failed": []}
