"""Printing a tensor shows what CPU shows, and compiles nothing for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_pjrt
from fixture_types import Count

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "numbers": lambda: torch.tensor([1.0, -2.5, 1e-8, float("nan"), float("inf")]),
    "integers": lambda: torch.arange(6).view(2, 3),
    "bools": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.tensor([1 + 2j]),
    "half": lambda: torch.tensor([1.5], dtype=torch.bfloat16),
    "many": lambda: torch.arange(5000.0),
    "empty": lambda: torch.empty(0, 3),
    "0-d": lambda: torch.tensor(3.5),
    "leaf": lambda: torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("name", TENSORS)
def test_text_is_that_of_the_cpu_with_the_device_named(name: str, compiled: Count) -> None:
    on_cpu = TENSORS[name]()
    ours = on_cpu.detach().to("pjrt").requires_grad_(on_cpu.requires_grad)

    text = repr(ours)

    assert "device='pjrt:0'" in text
    assert text.replace(" ", "").replace("\n", "").replace("device='pjrt:0',", "").replace(
        ",device='pjrt:0'", ""
    ) == repr(on_cpu).replace(" ", "").replace("\n", "")
    assert compiled() == 0


def test_view_is_printed_without_a_program(compiled: Count) -> None:
    x = torch.arange(12.0).view(3, 4).to("pjrt")

    assert repr(x.t()[1:, ::2]) == repr(x.cpu().t()[1:, ::2])[:-1] + ", device='pjrt:0')"
    assert compiled() == 0


def test_pending_value_is_computed_and_nothing_more(compiled: Count) -> None:
    x = torch.ones(3).to("pjrt") * 2

    texts = {repr(x), str(x), f"{x}"}

    assert texts == {"tensor([2., 2., 2.], device='pjrt:0')"}
    assert compiled() == 1


def test_result_with_a_gradient_function_names_it(compiled: Count) -> None:
    x = torch.ones(2).to("pjrt").requires_grad_()

    assert "grad_fn=<MulBackward0>" in repr(x * 2)
    assert compiled() == 1


def test_format_of_a_number_reads_it() -> None:
    assert f"{torch.tensor(1.25, device='pjrt'):.1f}" == "1.2"


def test_parameter_and_module_are_printed() -> None:
    model = torch.nn.Linear(1, 1).to("pjrt")

    assert repr(model) == "Linear(in_features=1, out_features=1, bias=True)"
    assert repr(model.bias).startswith("Parameter containing:\ntensor([")


def test_device_names_itself() -> None:
    x = torch.ones(1, device="pjrt")

    assert str(x.device) == "pjrt:0"
    assert x.device == torch.device("pjrt") or x.device == torch.device("pjrt", 0)
    assert x.is_pjrt  # type: ignore[attr-defined]
    assert torch_pjrt.__version__
