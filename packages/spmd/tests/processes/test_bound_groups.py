"""A default group with a `device_id` has meshes, splits and subgroups, as scripts of other devices have."""

from __future__ import annotations

import json

import pytest
from several import run


@pytest.mark.parametrize(
    ("way", "n"),
    [("device", 2), ("number", 2), ("with gloo", 2), ("none", 2), ("number", 4), ("device", 4)],
)
@pytest.mark.slow("rows")
def test_groups_of_a_default_group_with_a_device_sum_over_their_ranks(way: str, n: int):
    for rank, ended in enumerate(run("bound_groups.py", n, way)):
        assert ended.status == 0, ended.err
        said = json.loads(ended.out.splitlines()[-1])
        everyone = n * (n + 1) / 2
        first = rank // 2 * 2 + 1.0
        pair = 2 * first + 1
        column = rank + 1.0 if n == 2 else 2 * (rank % 2) + 4.0
        ends = n + 1.0 if rank in (0, n - 1) else rank + 1.0
        assert said["groups"] == {
            "split": pair,
            "split, described": "pairs",
            "all, bound": everyone,
            "described": "x",
            "by its own ranks": pair,
            "subgroups": pair,
            "enumerated": pair,
            "mesh": everyone,
            "rows": column,
            "columns": pair,
            "flat": everyone,
            "split of another order": ends,
            "split, a rank": float(n) if rank == n - 1 else None,
            "split of a part": rank + 1.0 if rank % 2 else None,
            "split again": pair,
        }
        assert said["about"] == ["pjrt", "pjrt"]
        assert all(why.startswith("ValueError: ") for why in said["refused"].values()), said
