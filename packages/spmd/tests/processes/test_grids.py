"""A tape with the collectives of a row and a column is one program of all ranks, where these do the same.

Where they do not, programs are each group's own: the values are right, and nobody waits for long.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from several import run

from hangs import SLACK_S

LIMIT_S = 12

pytestmark = pytest.mark.slow("file")

Case = dict[str, Any]


def _ended(*arguments: str) -> list[Case]:
    ranks = []
    limit = {"TORCH_PJRT_PEER_TIMEOUT": str(LIMIT_S)}
    for one in run("grid_cases.py", 4, *arguments, variables=limit):
        assert one.status == 0 or arguments, one.err
        lines = [json.loads(line) for line in one.out.splitlines() if line.startswith("{")]
        ranks.append({line["case"]: line["found"] for line in lines})
    return ranks


@pytest.fixture(scope="module")
def ended() -> Iterator[list[Case]]:
    """What each of four ranks printed, by cases."""
    yield _ended()


def _of(ended: list[Case], case: str, what: str) -> list[Any]:
    return [rank[case][what] for rank in ended]


@pytest.mark.parametrize("case", ["alike", "of_all_as_well", "a_number_of_its_own"])
def test_ranks_that_do_the_same_run_one_program_a_step(ended: list[Case], case: str):
    sums = [24.0 + i / 2 for i in range(4) for _ in range(3)]
    expected = sums if case == "of_all_as_well" else [12.0] * 3

    assert _of(ended, case, "value") == [expected] * 4
    assert all(n == 1 for rank in _of(ended, case, "programs") for n in rank)
    assert _of(ended, case, "in vain") == [0] * 4


def test_a_captured_step_of_two_groups_is_replayed(ended: list[Case]):
    assert _of(ended, "captured", "value") == [[12.0] * 3] * 4
    assert min(_of(ended, "captured", "replays")) >= 3


def test_a_row_that_does_something_else_before_is_waited_for(ended: list[Case]):
    assert _of(ended, "an_evaluation_of_one_row", "value") == [[12.0] * 3] * 4
    assert _of(ended, "an_evaluation_of_one_row", "in vain") == [0] * 4


def test_what_all_begin_with_alike_is_one_program(ended: list[Case]):
    assert _of(ended, "a_read_behind", "value") == [[12.0] * 3] * 4
    assert _of(ended, "a_read_behind", "in vain") == [0] * 4
    assert all(n == 2 for rank in _of(ended, "a_read_behind", "programs") for n in rank)


def test_ranks_that_never_agree_run_by_groups_and_ask_less_and_less(ended: list[Case]):
    case = "a_read_between"
    assert _of(ended, case, "value") == [[12.0] * 3] * 4
    assert all(0 < n <= 7 for n in _of(ended, case, "in vain")[1:])  # of 24


def test_rows_that_do_different_things_run_by_groups(ended: list[Case]):
    assert _of(ended, "rows_that_go_different_ways", "value") == [[5.0] * 3] * 4


def test_a_rank_that_waits_unseen_is_waited_for_to_half_the_limit(ended: list[Case]):
    values = _of(ended, "one_waits_by_the_host", "value")

    assert values == [[2.0] * 3, *[[3.0] * 3] * 3]
    assert all(n > 0 for n in _of(ended, "one_waits_by_the_host", "in vain"))


def test_ranks_that_wait_by_the_host_come_to_what_the_one_waits_for(ended: list[Case]):
    case = "one_reads_and_the_others_wait_for_it_by_the_host"

    assert _of(ended, case, "value") == [[12.0] * 3] * 4


def test_who_stays_away_is_an_error_within_the_limit(ended: list[Case]):
    said = [rank["one_stays_away"] for rank in ended]

    assert said[3] == "away"
    for text, seconds in said[:3]:
        assert f"did not come within {LIMIT_S} s" in text
        assert seconds < LIMIT_S + SLACK_S


def test_a_captured_step_that_one_rank_does_not_run_is_an_error_on_all():
    for rank in _ended("captured"):
        error, seconds = rank["a_step_that_one_does_not_replay"]
        assert error.startswith(("PeersDiffer", "PeerError"))
        assert seconds < LIMIT_S + SLACK_S


@pytest.mark.parametrize("arguments", [("0", "10"), ("1000", "10", "alike")])
def test_random_programs_of_rows_and_columns_are_as_with_gloo(arguments: tuple[str, ...]):
    for one in run("random_grids.py", 4, *arguments):
        assert one.status == 0, one.err
        assert json.loads(one.out.splitlines()[-1])["failed"] == []
