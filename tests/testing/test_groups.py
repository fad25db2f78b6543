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


def test_a_group_is_run_by_one_worker(pytester: pytest.Pytester) -> None:
    helpers = Path(groups.__file__).parent
    pytester.makeini(f"[pytest]\npythonpath = {helpers}\naddopts = --import-mode=importlib")
    pytester.makeconftest("pytest_plugins = ['groups']")
    pytester.makepyfile(test_some=TESTS)

    run = pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup", "-v")

    run.assert_outcomes(passed=6)
    assert len({line[:5] for line in run.outlines if " PASSED " in line}) == 1
