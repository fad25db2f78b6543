"""XLA's options for the programs of a process or of a block, over those of the device's plugin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_pjrt
from fixture_types import Run
from torch_pjrt.errors import CompileError


def step(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def test_program_of_a_block_is_compiled_with_its_options(compiled: Callable[[], int]) -> None:
    x = torch.ones(3).to("pjrt")
    expected = step(x).cpu()
    assert compiled() == 1

    with torch_pjrt.compile_options(xla_cpu_enable_fast_min_max=True):
        inside = step(x)
    assert compiled() == 2
    torch.testing.assert_close(inside.cpu(), expected)

    step(x).cpu()
    assert compiled() == 2


def test_option_that_the_compiler_does_not_know_is_an_error_and_ends_with_the_block() -> None:
    x = torch.ones(4).to("pjrt")

    with (
        pytest.raises(CompileError, match="xla_nonsense"),
        torch_pjrt.compile_options(xla_nonsense=1),
    ):
        _held = step(x)

    assert torch_pjrt.config.compile_options == {}
    step(x).cpu()


def test_recompilation_says_that_options_differ() -> None:
    x = torch.ones(5).to("pjrt")
    step(x).cpu()

    with torch_pjrt.compile_options(xla_cpu_enable_fast_min_max=True):
        _held = step(x)

    why = torch_pjrt.report().programs[-1].why
    assert why is not None
    assert "`compile_options` are {'xla_cpu_enable_fast_min_max': True}; they were {}" in why.what


@pytest.mark.slow
def test_options_of_the_process_come_from_a_variable(python: Run) -> None:
    code = "import torch; print((torch.ones(2).to('pjrt') + 1).tolist())"

    python(code, TORCH_PJRT_COMPILE_OPTIONS="xla_cpu_enable_fast_min_max=true")
    unknown = python(code, returncode=1, TORCH_PJRT_COMPILE_OPTIONS="xla_nonsense=1")
    unreadable = python(code, returncode=1, TORCH_PJRT_COMPILE_OPTIONS="xla_nonsense")

    assert "xla_nonsense" in unknown.stderr
    assert "TORCH_PJRT_COMPILE_OPTIONS cannot be read." in unreadable.stderr
    assert "expected: name=value,name=value" in unreadable.stderr
