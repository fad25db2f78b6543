"""`check_nans()` names the operator that made a NaN, what it was given, and the line that called it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from fixture_types import Count
from torch_pjrt.errors import NonFiniteValue
from torch_pjrt.graph.tape import state
from torch_pjrt.observe.lines import is_on
from torch_pjrt.run import sync


def here() -> str:
    """The file and number of the line that calls this."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def text_of(caught: pytest.ExceptionInfo[NonFiniteValue]) -> str:
    return str(caught.value)


def test_first_operator_that_made_a_nan_is_named_with_its_line() -> None:
    x = torch.tensor([1.0, 0.0, -1.0]).to("pjrt")

    with torch_pjrt.check_nans():
        y = x.exp()
        line, z = here(), x.log()
        w = (z + y).sum()
        with pytest.raises(NonFiniteValue) as caught:
            w.item()

    assert text_of(caught).startswith("`aten.log.default` made NaN out of inputs that hold none.")
    assert f"`aten.log.default(float32[3])` at {line}" in text_of(caught)


def test_results_are_there_after_the_error() -> None:
    x = torch.tensor([1.0, -1.0]).to("pjrt")

    with torch_pjrt.check_nans():
        y, z = x.log(), x + 1
        with pytest.raises(RuntimeError):
            z.tolist()

        assert z.tolist() == [2, 0]
        assert str(y.tolist()) == "[0.0, nan]"


def test_infinity_that_a_nan_came_from_is_named() -> None:
    x = torch.tensor([1.0, 2.0]).to("pjrt")

    with torch_pjrt.check_nans():
        first, y = here(), (x * 1e30).exp()
        second, z = here(), y - y
        with pytest.raises(NonFiniteValue) as caught:
            z.tolist()

    assert f"`aten.sub.Tensor(float32[2], float32[2])` at {second}" in text_of(caught)
    assert f"first made by `aten.exp.default(float32[2])` at {first}" in text_of(caught)


def test_operator_of_backward_is_named_with_the_line_of_its_forward() -> None:
    model = nn.Linear(2, 2, bias=False).to("pjrt")
    nn.init.zeros_(model.weight)
    x = torch.ones(1, 2).to("pjrt")

    with torch_pjrt.check_nans():
        y = model(x)
        line, z = here(), y.norm(dim=1).sqrt().sum()
        z.backward()
        with pytest.raises(NonFiniteValue) as caught:
            model.weight.grad.cpu()  # type: ignore[union-attr]

    assert f"at {line}, in backward" in text_of(caught)


def test_module_is_named() -> None:
    class Bad(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.acos()

    x = torch.full((2,), 3.0).to("pjrt")

    with torch_pjrt.check_nans():
        y = nn.Sequential(nn.Identity(), Bad())(x)
        with pytest.raises(NonFiniteValue, match=r"aten\.acos\.default") as caught:
            y.cpu()

    assert ", Sequential/1\n" in text_of(caught)


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda x: x.log().nan_to_num(0.0), id="none reaches a result"),
        pytest.param(lambda x: torch.where(x > 0, x.log(), 0.0), id="it is masked"),
        pytest.param(lambda x: torch.full((2,), float("nan"), device="pjrt") + x[:2], id="number"),
        pytest.param(lambda x: x.masked_fill(x > 0, float("nan")) * 2, id="number of an operator"),
        pytest.param(lambda x: torch.tensor([float("nan")]).to("pjrt") * x, id="data"),
        pytest.param(lambda x: x.log()[:1] + 0, id="it is in no element that is read"),
        pytest.param(lambda x: x.masked_fill(x < 2, float("-inf")).softmax(0), id="mask"),
        pytest.param(lambda x: (x * 1e38 * 1e38).exp(), id="infinity"),
        pytest.param(lambda x: x[x > 0].log().sum(), id="selected"),
        pytest.param(lambda x: x.long() * 3, id="integers"),
    ],
)
def test_no_error_where_no_operator_made_a_nan_that_counts(
    compute: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.tensor([3.0, 2.0, -1.0]).to("pjrt")
    expected = compute(x).cpu()

    with torch_pjrt.check_nans():
        found = compute(x).cpu()

    torch.testing.assert_close(found, expected, equal_nan=True)


def test_infinities_are_errors_on_request_but_not_those_that_are_asked_for() -> None:
    x = torch.tensor([3.0, 2.0]).to("pjrt")

    with torch_pjrt.check_nans(infinities=True):
        x.masked_fill(x < 3, float("-inf")).softmax(0).tolist()
        y = x * 1e38 * 10.0
        with pytest.raises(NonFiniteValue, match=r"`aten.mul.Tensor` made an infinity out of fin"):
            y.tolist()


def test_complex_numbers_and_halves_are_checked() -> None:
    z = torch.tensor([0j]).to("pjrt")
    h = torch.tensor([-1.0], dtype=torch.float16).to("pjrt")

    with torch_pjrt.check_nans():
        for make_bad in (lambda: z / z, h.sqrt):
            bad = make_bad()
            with pytest.raises(NonFiniteValue):
                bad.cpu()


def test_checked_training_compiles_nothing_after_its_start(compiled: Count) -> None:
    p = torch.ones(3, device="pjrt", requires_grad=True)
    optimizer = torch.optim.AdamW([p], lr=0.1)

    after = []
    with torch_pjrt.check_nans():
        for _ in range(6):
            p.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            after.append(compiled())

    assert after[2] == after[-1] <= 4, after


def test_operator_is_named_though_an_unchecked_run_donated_its_inputs(compiled: Count) -> None:
    def step(p: torch.Tensor, by: float) -> None:
        p.sub_(by).sqrt_()
        torch_pjrt.sync()

    p = torch.full((3,), 1e6).to("pjrt")
    for _ in range(3):
        step(p, 1.0)

    with torch_pjrt.check_nans(), pytest.raises(NonFiniteValue, match=r"aten\.sqrt\.default"):
        step(p, 1e9)


def test_nan_in_training_is_raised_by_the_optimizer_step() -> None:
    p = torch.ones(2, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=1.0)

    with torch_pjrt.check_nans():
        loss = (p - 2).log().sum()
        loss.backward()
        with pytest.raises(NonFiniteValue, match=r"aten\.log\.default"):
            optimizer.step()

    assert str(loss.item()) == "nan"


def test_random_numbers_are_those_of_an_unchecked_run() -> None:
    torch.manual_seed(3)
    expected = [torch.rand(3, device="pjrt").tolist() for _ in range(2)]
    torch.manual_seed(3)

    with torch_pjrt.check_nans():
        assert [torch.rand(3, device="pjrt").tolist() for _ in range(2)] == expected


def test_error_comes_at_the_line_in_eager_mode() -> None:
    x = torch.tensor([-1.0]).to("pjrt")

    with torch_pjrt.check_nans(), torch_pjrt.eager():
        y = x.exp()
        with pytest.raises(NonFiniteValue, match=r"aten\.sqrt\.default"):
            x.sqrt()
        y = y + 1

    assert y.item() > 1


def test_block_ends_by_checking_what_is_pending() -> None:
    x = torch.tensor([-1.0]).to("pjrt")

    with pytest.raises(NonFiniteValue), torch_pjrt.check_nans():
        y = x.sqrt()

    assert str(y.tolist()) == "[nan]"
    assert sync.checker is None
    assert not is_on()


def test_nothing_is_checked_or_noted_outside() -> None:
    with torch_pjrt.check_nans():
        with torch_pjrt.check_nans():
            pass
        assert sync.checker is not None

    assert sync.checker is None
    assert type(state.tape.code) is list
    assert str((torch.ones(1, device="pjrt") * -1).sqrt().tolist()) == "[nan]"


@pytest.mark.slow
def test_variable_checks_the_whole_process(python: Callable[..., Any]) -> None:
    script = "import torch; print((torch.ones(2, device='pjrt') * -1).log().tolist())"

    done = python(script, returncode=1, TORCH_PJRT_CHECK_NANS="1")

    assert "NonFiniteValue: `aten.log.default` made NaN" in done.stderr
    assert "at <string>:1" in done.stderr
    assert python(script, TORCH_PJRT_CHECK_NANS="0").stdout == "[nan, nan]\n"
    assert python(script.replace("* -1", "* 0"), TORCH_PJRT_CHECK_NANS="1").stdout
    python(script.replace("* -1", "* 0"), returncode=1, TORCH_PJRT_CHECK_NANS="inf")
