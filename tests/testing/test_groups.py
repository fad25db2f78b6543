"""Tests that share started processes run on one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

import groups

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.xdist_group("some group")
@pytest.mark.parametrize("n", range(6))
def test_together(n): pass
"""


def passed_on(pytester: pytest.Pytester, **files: str) -> list[str]:
    """The lines of tests that passed, on two workers."""
    helpers = Path(groups.__file__).parent
    pytester.makeini(f"[pytest]\npythonpath = {helpers}\naddopts = --import-mode=importlib")
    pytester.makeconftest("pytest_plugins = ['groups']")
    pytester.makepyfile(**files)

    run = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "-v")

    return [line for line in run.outlines if " PASSED " in line]


def test_a_group_is_run_by_one_worker(pytester: pytest.Pytester) -> None:
    lines = passed_on(pytester, test_some=TESTS)

    assert len(lines) == 6
    assert len({line[:5] for line in lines}) == 1


MADE_ONCE = """
import pytest

@pytest.fixture(scope="module")
def made(): return [0]

@pytest.mark.parametrize("n", range(6))
def test_together(n, made): made.append(n)
"""


def test_tests_that_share_what_a_module_s_fixture_makes_are_run_by_one_worker(
    pytester: pytest.Pytester,
) -> None:
    lines = passed_on(pytester, test_some=MADE_ONCE)

    assert len(lines) == 6
    assert len({line[:5] for line in lines}) == 1


def test_files_on_eight_chips_begin_first(pytester: pytest.Pytester) -> None:
    others = "".join(f"def test_{n}(): pass\n" for n in range(20))
    lines = passed_on(pytester, test_a=others, test_on_eight_chips="def test_long(): pass")

    assert len(lines) == 21
    [long] = (line for line in lines if "test_long" in line)
    assert next(line for line in lines if line[:5] == long[:5]) == long, "another test came first"
