"""Every lowering computes what PyTorch's CPU kernel computes, in value, dtype and shape."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

import pytest

import samples
from check import Sample, check
from torch_pjrt.lowering import CORE
from torch_pjrt.overloads import Absent

SAMPLES: list[Sample] = [
    row
    for module in pkgutil.iter_modules(samples.__path__)
    for row in importlib.import_module(f"samples.{module.name}").SAMPLES
    if not isinstance(row.op, Absent)
]


def in_turn(rows: Iterable[Sample]) -> list[Any]:
    """The rows as parameters: an operator's first one is tested always, its others take turns."""
    seen: set[Any] = set()
    parameters: list[Any] = []
    for row in rows:
        parameters.append(pytest.param(row, marks=pytest.mark.slow) if row.op in seen else row)
        seen.add(row.op)
    return parameters


@pytest.mark.parametrize("row", in_turn(SAMPLES), ids=str)
def test_rule_agrees_with_cpu(row: Sample):
    check(row, CORE[row.op])


def test_every_lowering_has_a_sample():
    sampled = {row.op for row in SAMPLES}

    missing = sorted(str(op) for op in CORE if op not in sampled)

    assert not missing, f"lowerings without a sample in tests/lowering/samples: {missing}"
