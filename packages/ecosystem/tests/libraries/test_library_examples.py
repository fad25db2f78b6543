"""Examples of libraries compute on `pjrt` what they do on the CPU, on the device alone, in few programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from library_examples import EXAMPLES, Example
from small import Costs

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # what libraries say of themselves and of each other


@pytest.mark.slow("rows")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.distribution}-{e.function}")
def test_example_is_the_cpus_with_few_programs_and_none_on_the_cpu(example: Example) -> None:
    if missing := example.missing():
        pytest.skip(missing)
    costs = Costs()
    found = example.run("pjrt", costs)
    fallbacks = costs.fallbacks

    expected = example.run("cpu", Costs())

    assert_close(found, expected)
    assert fallbacks == 0
    if example.cost is not None:
        steps = costs.steps[example.from_step :]
        assert steps
        assert set(steps) == {(*example.cost, 0)}


def assert_close(found: Any, expected: Any) -> None:
    """Floats to what a few steps of training in float32 leave; the rest equal."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
