"""Steps with collectives are one program each, where ranks do the same; and right where they do not.

In a second start these programs come from disk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from several import run

from hangs import SLACK_S

Ranks = list[dict[str, Any]]


def _started(folder: str = "", fuse: str = "1") -> Ranks:
    """What each of two ranks printed; `folder` is that of programs on disk."""
    ranks = []
    variables = {"TORCH_PJRT_CACHE_DIR": folder, "TORCH_PJRT_FUSE_COLLECTIVES": fuse}
    for one in run("joint_steps.py", 2, variables=variables):
        assert one.status == 0, one.err
        ranks.append(json.loads(one.out.splitlines()[-1]))
    return ranks


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ranks]]:
    """Of two starts with one folder of programs."""
    folder: Path = tmp_path_factory.mktemp("programs")
    yield [_started(str(folder)) for _ in range(2)]


def test_a_step_of_ddp_with_its_buckets_is_one_program(starts: list[Ranks]):
    for start in starts:
        for rank in start:
            assert rank["plain"]["programs"][2:] == [1] * 6
            assert rank["plain"]["joint"][1] == 0


def test_a_second_start_compiles_nothing_and_has_the_same_losses(starts: list[Ranks]):
    first, second = starts

    assert [rank["compiled"] > 0 for rank in first] == [True, True]
    assert [rank["compiled"] for rank in second] == [0, 0]
    for one, other in zip(first, second, strict=True):
        assert one["plain"] == other["plain"]


def test_ranks_have_losses_of_their_own_and_the_same_weights(starts: list[Ranks]):
    one, other = starts[0]

    assert one["plain"]["losses"] != other["plain"]["losses"]
    assert one["plain"]["weights"] == other["plain"]["weights"]


def test_a_captured_step_with_collectives_is_replayed(starts: list[Ranks]):
    for rank in starts[0]:
        assert rank["captured"]["replays"] >= 3
        assert rank["captured"]["losses"] == pytest.approx(rank["plain"]["losses"], rel=1e-5)


def test_where_one_rank_reads_more_the_steps_are_programs_all_the_same(starts: list[Ranks]):
    for rank in starts[0]:
        together, apart = rank["read by one"]["joint"]
        assert rank["read by one"]["losses"] == pytest.approx(rank["plain"]["losses"], rel=1e-5)
        assert together >= 8
        assert apart <= 10


def test_a_rank_that_waits_by_the_host_runs_what_others_wait_for(starts: list[Ranks]):
    for rank in starts[0]:
        said, y, seconds = rank["waits otherwise"]
        assert [said, y] == [2.0, [2.0] * 3]
        assert seconds < SLACK_S


@pytest.mark.slow
def test_fused_or_not_the_losses_are_the_same(starts: list[Ranks]):
    apart = _started(fuse="0")

    for rank, fused in zip(apart, starts[0], strict=True):
        assert min(rank["plain"]["programs"]) > 1
        assert rank["plain"]["losses"] == pytest.approx(fused["plain"]["losses"], rel=1e-5)
