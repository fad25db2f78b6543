"""Examples of libraries compute on `pjrt` what they do on the CPU, on the device alone, in few programs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
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

    if example.in_float64:
        check_is_as_near_to_the_truth(found, expected, example.run_in_float64())
    else:
        assert_close(found, expected)
    assert fallbacks == 0
    if example.cost is not None:
        steps = costs.steps[example.from_step :]
        assert steps
        assert set(steps) == {(*example.cost, 0)}


@pytest.mark.parametrize(
    ("module", "ends", "n"), [("diffusion", ".to_k.bias", 4), ("sentences", ".key.bias", 2)]
)
def test_only_biases_of_keys_are_left_out(module: str, ends: str, n: int) -> None:
    example = next(e for e in EXAMPLES if e.function == f"{module}:training")
    if missing := example.missing():
        pytest.skip(missing)

    found = importlib.import_module(f"library_examples.{module}").unseen_by_loss()

    assert len(found) == n
    assert all(name.endswith(ends) for name in found)


def check_is_as_near_to_the_truth(found: Any, expected: Any, truth: Any) -> None:
    """What is found in float32 is at most twice as far from float64 as PyTorch's float32 on the CPU.

    The distance is that of all numbers of a tensor, or of a list, beside their size. A few numbers may
    be exact by luck: where there are less than a hundred, four roundings are allowed.
    """
    for each, beside, exact in zip(
        _vectors(found), _vectors(expected), _vectors(truth), strict=True
    ):
        size = exact.norm()
        limit = 2 * ((beside - exact).norm() / size).item()
        if exact.numel() < 100:
            limit = max(limit, 4 * torch.finfo(torch.float32).eps)
        assert ((each - exact).norm() / size).item() <= limit


def _vectors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found.double().flatten()
    elif isinstance(found[0], float):
        yield torch.tensor(found, dtype=torch.float64)
    else:
        for each in found:
            yield from _vectors(each)


def assert_close(found: Any, expected: Any) -> None:
    """Floats to what a few steps of training in float32 leave; the rest equal."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
