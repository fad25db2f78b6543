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

@pytest.mark.slow("rows")
@pytest.mark.parametrize("n", range(4))
def test_table(n): print(f"row {n}")
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

    pytester.runpytest_inprocess("--part", "0/3").assert_outcomes(passed=7, deselected=4)
    pytester.runpytest_inprocess("--part", "0/3", "test_some.py").assert_outcomes(passed=11)


def test_first_row_of_a_table_runs_each_day_and_each_other_one_in_one_part(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nmarkers = slow\naddopts = -p turns --import-mode=importlib")
    pytester.makepyfile(test_some=TESTS)

    def rows(part: int) -> list[int]:
        said = pytester.runpytest_inprocess("--part", f"{part}/3", "-s", "-k", "table").outlines
        return [int(line.split("row ")[1][0]) for line in said if "row " in line]

    first, *others = zip(*(sorted(rows(part)) for part in range(3)), strict=True)
    assert first == (0, 0, 0)
    assert sorted(n for day in others for n in day) == [1, 2, 3]
