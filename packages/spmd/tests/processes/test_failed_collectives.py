"""After a collective that fails tensors hold what they held before it, or reading them is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from several import run

LOST = "lost"
# What tensors hold after the collective has failed at its call, and where it failed later.
HOLDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "in_place": ({"x": 7, "beside": 6}, {"x": LOST, "beside": 6}),
    "a_view": ({"x": 7}, {"x": LOST}),
    "a_broadcast": ({"x": 7}, {"x": LOST}),
    "a_list": ({"first": 7, "second": 8}, {"first": LOST, "second": LOST}),
    "one_tensor": ({"whole": 7, "part": 8}, {"whole": LOST, "part": LOST}),
    "never_written": ({"x": 0}, {"x": LOST}),
    "a_step_of_an_optimizer": ({"weight": 7, "moment": 0}, {"weight": LOST, "moment": LOST}),
    "a_copy_of_the_result": ({"average": 7}, {"average": LOST}),
    "a_copy_of_what_is_gone": ({"average": 7}, {"average": LOST}),
    "new_tensors": ({"x": 1}, {"x": LOST, "double": LOST, "sum": LOST}),
    "two_collectives": ({"x": 7, "y": 8}, {"x": LOST, "y": LOST}),
}


@pytest.mark.parametrize(
    ("when", "fuses"),
    [("call", "1"), ("later", "1"), pytest.param("later", "0", marks=pytest.mark.slow)],
    ids=["call", "later", "alone"],
)
def test_no_tensor_holds_another_value_after_a_collective_that_failed(when: str, fuses: str):
    fails_later = when == "later" and fuses == "1"
    variables = {"TORCH_PJRT_FUSE_COLLECTIVES": fuses}
    for one in run("failed_collectives.py", 2, when, variables=variables):
        assert one.status == 0, one.err
        lines = [json.loads(line) for line in one.out.splitlines() if line.startswith("{")]
        said = {line.pop("case"): line for line in lines}
        assert said.pop("after_all_that") == {"holds": {"x": 2}}
        assert said == {
            case: {"error": "PeersDiffer", "left": [0, False], "holds": holds[fails_later]}
            for case, holds in HOLDS.items()
        }
