"""A compiled function's products have the precision that its option says, whatever is in force."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt.errors import SettingError
from torch_pjrt_dynamo.options import options_of


@pytest.fixture
def x() -> torch.Tensor:
    x = torch.linspace(-1, 1, 9).reshape(3, 3).to("pjrt")
    torch_pjrt.sync()
    return x


def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def compiled(function: Any, precision: str) -> Any:
    return torch.compile(function, backend="pjrt", options={"precision": precision})


def precisions(*tensors: torch.Tensor) -> Counter[str]:
    """Of the products in the program that makes the tensors."""
    text = torch_pjrt.to_stablehlo(tensors)
    lines = [line for line in text.splitlines() if "dot_general" in line]
    return Counter((re.findall("HIGHEST|HIGH|DEFAULT", line) or ["none"])[0] for line in lines)


@pytest.mark.parametrize(
    ("name", "expected"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]
)
def test_the_program_has_it(name: str, expected: str, x: torch.Tensor) -> None:
    result = compiled(product, name)(x)

    assert precisions(result) == {expected: 1}
    torch.testing.assert_close(result.cpu(), product(x.cpu()))


def test_two_graphs_and_operators_of_one_program_keep_theirs(x: torch.Tensor) -> None:
    before = torch.get_float32_matmul_precision()
    high, medium = compiled(product, "high")(x), compiled(lambda x: x @ x + 1, "medium")(x)
    plain = x @ x

    assert before == torch.get_float32_matmul_precision() == "highest"
    assert precisions(high, medium, plain) == {"HIGH": 1, "DEFAULT": 1, "HIGHEST": 1}


def test_backward_has_it_too(x: torch.Tensor) -> None:
    w = x.clone().requires_grad_()
    torch_pjrt.sync()

    compiled(lambda x, w: (x @ w).sum(), "high")(x, w).backward()

    assert w.grad is not None
    assert set(precisions(w.grad)) == {"HIGH"}


def test_bodies_of_control_flow_have_it(x: torch.Tensor) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x - 1, (x,))

    assert precisions(compiled(chosen, "medium")(x)) == {"DEFAULT": 1}


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(SettingError, match="highest, high, medium"):
        options_of({"precision": "exact"})
