"""Tests that are `slow` take turns: each runs in one of so many parts, and a file's may stay together.

So do the rows of long tables."""

from __future__ import annotations

from typing import Any

import pytest

from turns import out_of_turn, rows_out_of_turn

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


class Row:
    """As much of a test as turns ask for."""

    def __init__(self, nodeid: str, mark: object = None) -> None:
        self.nodeid, self.mark = nodeid, mark

    def get_closest_marker(self, name: str) -> object:
        return self.mark


@pytest.mark.parametrize(("n_rows", "at_most"), [(8, 8), (9, 3), (122, 7)])
def test_all_rows_of_a_long_table_run_within_24_days(n_rows: int, at_most: int) -> None:
    table: list[Any] = [Row(f"test_table[{n}]") for n in range(n_rows)]

    days = [set(table) - set(rows_out_of_turn(table, part)) for part in range(24)]

    assert all(set(table[:2]) <= day for day in days)
    assert set().union(*days) == set(table)
    assert max(map(len, days)) == at_most


def test_only_rows_of_long_tables_that_are_not_slow_rest() -> None:
    slow: list[Any] = [Row(f"test_slow[{n}]", mark=object()) for n in range(20)]
    single: list[Any] = [Row(f"test_{n}") for n in range(20)]

    assert not list(rows_out_of_turn([*slow, *single], 0))


def test_a_long_table_of_a_file_that_is_named_runs_whole(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = -p turns --import-mode=importlib")
    table = "import pytest\n@pytest.mark.parametrize('n', range(30))\ndef test_table(n): pass"
    pytester.makepyfile(test_some=table)

    pytester.runpytest_inprocess("--part", "0/24").assert_outcomes(passed=3, deselected=27)
    pytester.runpytest_inprocess("--part", "0/24", "test_some.py").assert_outcomes(passed=30)
