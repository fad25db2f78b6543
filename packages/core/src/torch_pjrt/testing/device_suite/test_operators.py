"""Operators give on the device what they give on the CPU, by kind and dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torch_pjrt.testing.conformance.cases import Case
from torch_pjrt.testing.conformance.check import check
from torch_pjrt.testing.conformance.gaps import gap_of
from torch_pjrt.testing.current_test import find_quickly


def setup_module() -> None:
    find_quickly()


def test_operator(
    operator_case: Case, pjrt_kind: Callable[[str], None], request: pytest.FixtureRequest
) -> None:
    """What runs on the host passes too, and is counted."""
    pjrt_kind(f"{operator_case.kind} {operator_case.dtype}")

    result = check(operator_case, "pjrt")

    if result.on_cpu:
        request.node.user_properties.append(("ran on the host", ", ".join(result.on_cpu)))
    if result.failed and operator_case in gap_of():
        pytest.xfail("a known gap of torch-pjrt on any device")
    assert not result.failed, "\n".join(result.failures)
