"""PyTorch finds the test that asks for samples, without reading the sources of its callers."""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from torch_pjrt.testing.current_test import PYTORCHS, current_test

ADD = next(op for op in op_db if op.name == "add")


class Asked:
    """Stands between a test and the search, with a `self` of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.answer = function()


class Case(unittest.TestCase):
    __test__ = False  # pytest leaves it to the tests below
    found: Any = None

    def test_that_asks(self) -> None:
        Case.found = Asked(lambda: [current_test()]).answer[0]

    def test_with_samples(self) -> None:
        Case.found = core.extract_test_fn()
        self.first = next(iter(ADD.sample_inputs("cpu", torch.float32))).input


def test_the_test_is_found() -> None:
    Case("test_that_asks").run()
    assert Case.found is Case.test_that_asks
    Case("test_with_samples").run()
    assert Case.found is Case.test_with_samples


def test_outside_of_tests_there_is_none() -> None:
    assert current_test() is None


def test_samples_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their seed is the test's name."""
    case = Case("test_with_samples")
    case.run()
    ours = case.first
    for module in (common_utils, core):
        monkeypatch.setattr(module, "extract_test_fn", PYTORCHS)
    case.run()
    assert torch.equal(case.first, ours)


def test_no_source_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "stack", lambda: pytest.fail("the sources are read"))
    result = unittest.TestResult()
    Case("test_with_samples").run(result)
    assert result.wasSuccessful(), result.failures
