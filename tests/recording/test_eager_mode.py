"""In eager mode each operator runs at once: its result is there, and its error is raised at its line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_pjrt
from fixture_types import Count
from torch_pjrt.compile import build
from torch_pjrt.errors import LoweringError
from torch_pjrt.graph.tape import state


def is_there(x: torch.Tensor) -> bool:
    return x.untyped_storage().buffer.value.array is not None  # type: ignore[attr-defined]


def test_result_is_there_after_each_operator() -> None:
    x = torch.ones(3).to("pjrt")

    with torch_pjrt.eager():
        y = x + 1
        assert is_there(y)
        y.mul_(2)
        assert is_there(y)
        y[1:] += 1
        assert is_there(y)
        a, b = torch.sort(y)
        assert is_there(a)
        assert is_there(b)
        assert not state.tape.code
    z = x + 1

    assert not is_there(z)
    assert y.tolist() == [4, 5, 5]
    assert z.tolist() == [2, 2, 2]


def test_what_was_pending_runs_first() -> None:
    x = torch.ones(3).to("pjrt") + 1

    with torch_pjrt.eager():
        assert is_there(x)


def test_error_of_a_rule_is_raised_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = build.apply

    def failing(node: Any, *rest: Any) -> Any:
        if node.op is torch.ops.aten.erfinv.default:
            raise LoweringError("erfinv fails.")
        return apply(node, *rest)

    x = torch.rand(7).to("pjrt")
    torch_pjrt.sync()
    monkeypatch.setattr(build, "apply", failing)

    with torch_pjrt.eager():
        y = x.exp()
        with pytest.raises(LoweringError, match="erfinv fails"):
            x.erfinv()
        z = y + 1

    torch.testing.assert_close(z.cpu(), x.cpu().exp() + 1)


def test_index_out_of_range_is_raised_at_its_line() -> None:
    x = torch.arange(3.0).to("pjrt")
    index = torch.tensor([1]).to("pjrt") * 5
    torch_pjrt.sync()

    with torch_pjrt.eager(), pytest.raises(IndexError, match="index 5 is out of bounds"):
        x[index]


def trained(device: str) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x, y = torch.randn(8, 6).to(device), torch.randint(0, 3, (8,)).to(device)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_training_gives_the_losses_of_lazy_execution_random_numbers_included() -> None:
    lazy = trained("pjrt")

    with torch_pjrt.eager():
        eager = trained("pjrt")

    torch.testing.assert_close(eager, lazy, rtol=1e-5, atol=1e-6)


def test_backward_runs_at_once(compiled: Count) -> None:
    x = torch.rand(3, requires_grad=True, device="pjrt")
    seen = []
    x.register_hook(lambda grad: seen.append(is_there(grad)))

    with torch_pjrt.eager():
        x.exp().sum().backward()

    assert seen == [True]
    assert compiled() > 3


def test_selecting_and_decomposed_operators_work() -> None:
    x = torch.tensor([3.0, -1.0, 2.0])

    def compute(device: str) -> list[torch.Tensor]:
        y = x.to(device)
        return [t.cpu() for t in (y[y > 0], torch.sinc(y), y.nonzero(), y.unique(), y.var())]

    with torch_pjrt.eager():
        ours = compute("pjrt")

    torch.testing.assert_close(ours, compute("cpu"))


def test_variable_makes_every_thread_eager(python: Callable[..., Any]) -> None:
    script = """
import threading, torch
def run():
    x = torch.ones(3, device="pjrt")
    y = (x + 1)[1:]
    y.mul_(3)
    a = y.untyped_storage().buffer.value.array
    print(a is not None, y.tolist())
run()
thread = threading.Thread(target=run); thread.start(); thread.join()
"""

    eager = python(script, TORCH_PJRT_EAGER="1").stdout.splitlines()
    lazy = python(script).stdout.splitlines()

    assert eager == ["True [6.0, 6.0]"] * 2
    assert lazy[0] == "False [6.0, 6.0]"


def test_variable_that_cannot_be_read_is_told(python: Callable[..., Any]) -> None:
    script = "import torch; torch.ones(3, device='pjrt')"

    done = python(script, returncode=1, TORCH_PJRT_EAGER="yes")

    assert "SettingError: TORCH_PJRT_EAGER cannot be read." in done.stderr
    assert "expected: 0 or 1" in done.stderr
