"""Tests that are `slow` take turns: each runs in one of so many parts, and a file's may stay together."""

from __future__ import annotations

import pytest

from turns import out_of_turn

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.slow
@pytest.mark.parametrize("n", range(3))
def test_slow(n): pass

@pytest.mark.slow("file")
@pytest.mark.parametrize("n", range(3))
def test_together(n): pass
"""


def test_each_turn_is_in_one_part_and_what_has_none_is_in_all() -> None:
    turns = {"quick": None, **{str(n): str(n) for n in range(7)}, "a": "file", "b": "file"}

    ran = [[*turns.keys() - set(out_of_turn(turns.items(), n, 3))] for n in range(3)]
    assert all("quick" in part for part in ran)
    assert sorted(x for part in ran for x in part if x != "quick") == sorted(turns)[:-1]
    assert [("a" in part, "b" in part) for part in ran].count((True, True)) == 1
    assert [sum(x.isdigit() for x in part) for part in ran] == [3, 2, 2]


def test_file_that_is_named_runs_whole(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = slow\naddopts = -p turns --import-mode=importlib")
    pytester.makepyfile(test_some=TESTS)

    pytester.runpytest_inprocess("--part", "0/3").assert_outcomes(passed=5, deselected=2)
    pytester.runpytest_inprocess("--part", "0/3", "test_some.py").assert_outcomes(passed=7)
