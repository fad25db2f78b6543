"""Random plans of tensor and sequence parallel give what they give by gloo on CPU tensors, in float64."""

from __future__ import annotations

import json

import pytest
from several import run

# How many plans, from which number on, by how many processes.
PLANS = [(2, 0, 4), (4, 1000, 3)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("n", "first", "count"), PLANS)
def test_random_plans_are_as_with_gloo(n: int, first: int, count: int):
    for ended in run("random_plans.py", n, str(first), str(count), timeout_s=240):
        assert ended.status == 0, ended.err
        said = json.loads(ended.out.splitlines()[-1])
        assert said == {"plans": count, "refused": 0, "failed": []}
