"""Ranks that do not do the same get the right values, or an error that says so within the time limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from several import run

from hangs import SLACK_S

LIMIT_S = 3

# On each rank the same, but where there are two.
VALUES: dict[str, Any] = {
    "a_number": [3.0, 3.0],
    "a_graph": [5.0, 5.0],
    "a_seed": True,
    "a_read": [10.0, 10.0],
    "a_live_result": [[1.0, 3.0, 5.0], True],
    "a_dropped_result": [2.0] * 5,
    "a_handle_that_nobody_waits_for": [8.0, 8.0],
    "sends_before_receives": ([1.0, 1.0], [0.0, 0.0]),
    "a_group_that_one_uses": [1.0],
    "what_is_beside_one_that_differs": [
        [0.0, 2.0, 4.0],
        [1.0, 3.0, 5.0],
        [0.0, 6.0, 20.0],
    ],
    "a_limit_that_is_set_later": "Rank 1 did not come within 1 s.",
    "a_group_that_one_makes": ("Rank 1 did not come within 3 s.", "made none"),
    # After how many limits, for whom it waited, and the same again.
    "a_rank_that_gives_up_and_goes_on": ([0, [1], [3.0] * 4], [1, [0], [3.0] * 4]),
    "after_all_that": [2.0, 2.0],
}
DIFFER = ("a_shape", "a_dtype", "a_reduction", "another_collective", "a_root", "a_factor")
# What gloo says where its own time is over, and where the other side's was over a moment before.
NO_ANSWER = ("Timed out waiting 3000ms", "closed by peer", "caused pair closure", "reset by peer")
LATE = {
    "groups_in_another_order": ("did not come within 3 s",),
    "a_receive_that_nobody_sends": NO_ANSWER,
    "a_send_that_nobody_receives": NO_ANSWER,
}


@pytest.fixture(
    scope="module", params=["alone", pytest.param("--long", marks=pytest.mark.slow("file"))]
)
def ended(request: pytest.FixtureRequest) -> Iterator[list[dict[str, dict[str, Any]]]]:
    """What each rank printed of each case: of collectives that run at once, and of such that could wait."""
    ranks = []
    limit = {"TORCH_PJRT_PEER_TIMEOUT": str(LIMIT_S)}
    for one in run("rank_dependent.py", 2, request.param, variables=limit):
        assert one.status == 0, one.err
        lines = [json.loads(line) for line in one.out.splitlines() if line.startswith("{")]
        ranks.append({line["case"]: line for line in lines})
    yield ranks


@pytest.mark.parametrize("case", VALUES)
def test_what_depends_on_the_rank_is_right(ended: list[dict[str, Any]], case: str):
    expected = VALUES[case]
    for rank, of in enumerate(ended):
        here = expected[rank] if isinstance(expected, tuple) else expected

        assert of[case].get("value", of[case].get("error")) == here


@pytest.mark.parametrize("case", DIFFER)
def test_collectives_that_differ_are_an_error_on_all_ranks_at_once(
    ended: list[dict[str, Any]], case: str
):
    for of in ended:
        assert of[case]["error"].startswith("PeersDiffer: ")
        assert "rank 0: " in of[case]["error"] and "rank 1: " in of[case]["error"]
        assert of[case]["seconds"] < LIMIT_S


@pytest.mark.parametrize("case", LATE)
def test_what_nobody_answers_is_an_error_within_the_time_limit(
    ended: list[dict[str, Any]], case: str
):
    for rank, of in enumerate(ended):
        error = of[case]["error"]
        assert error.startswith("PeerError: ")
        assert any(text in error for text in LATE[case]), error
        assert f"rank {1 - rank}" in error.lower()
        assert of[case]["seconds"] < LIMIT_S + SLACK_S


def test_a_collective_that_one_rank_skips_names_it(ended: list[dict[str, Any]]):
    first, second = (of["a_collective_that_one_skips"] for of in ended)

    assert first["error"].startswith("PeerError: Rank 1 (")
    assert "has ended" in first["error"]
    assert first["seconds"] < LIMIT_S
    assert second["value"] == "skipped"
