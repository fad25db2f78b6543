"""Each sync has its cause in words and the user's line."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch

import torch_pjrt
from fixture_types import Run
from lines import at, here
from torch_pjrt.observe.stops import Stop, stops
from torch_pjrt.settings import settings


def new_stops(act: Callable[[], object]) -> list[Stop]:
    """The causes and lines that have one more sync after `act` than before; nothing is pending before."""
    torch_pjrt.sync()
    before = {(s.cause, s.line): s.syncs for s in stops()}
    act()
    return [s for s in stops() if s.syncs > before.get((s.cause, s.line), 0)]


#   what reads                     its cause
READERS: dict[str, Callable[[torch.Tensor], object]] = {
    ".item()": lambda x: x.sum().item(),
    ".tolist()": lambda x: x.exp().tolist(),
    ".cpu()": lambda x: x.exp().cpu(),
    ".to()": lambda x: x.exp().to("cpu"),
    ".numpy()": lambda x: x.exp().numpy(force=True),
    "float()": lambda x: float(x.sum()),
    "int()": lambda x: int(x.sum()),
    ".equal()": lambda x: torch.equal(x.exp(), x),
    "printing": lambda x: repr(x.exp()),
    "formatting": lambda x: f"{x.sum():.3f}",
    "`in`": lambda x: 3 in x.exp(),
    "a tensor as an index": lambda x: [0, 1, 2, 3, 4][x.long().sum()],
    "a size that only values decide": lambda x: x.exp().nonzero(),
}


@pytest.mark.parametrize("cause", READERS)
def test_reader_is_named(cause: str) -> None:
    x = torch.ones(3, device="pjrt")
    read = READERS[cause]

    [stop] = new_stops(lambda: read(x))

    assert stop.cause == cause, str(stop)
    assert at(stop.line) == (__file__, read.__code__.co_firstlineno)


def test_control_flow_on_a_tensor_is_named() -> None:
    x = torch.ones(3, device="pjrt")

    def when() -> int:
        return 1 if x.sum() > 2 else 2

    def until() -> None:
        while (x.sum() < 2).any():
            pass

    def negated() -> bool:
        return not x.sum()

    def asserted() -> None:
        assert x.sum() > 0

    def asked() -> bool:
        return bool(x.sum())

    for act in (when, until, negated, asserted, asked):
        [stop] = new_stops(act)
        assert stop.cause == "control flow on a tensor (bool)", act
        assert at(stop.line) == (__file__, act.__code__.co_firstlineno + 1), act


def test_reader_is_found_in_a_long_expression() -> None:
    x = torch.ones(3, device="pjrt")

    [stop] = new_stops(
        lambda: [1, (x.sum() * max(2, int("3"))).abs().item(), float("2"), x.shape[0]]
    )

    assert stop.cause == ".item()"


def test_optimizer_step_is_at_the_line_that_calls_it() -> None:
    w = torch.ones(3, device="pjrt", requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    lines = []

    def train() -> None:
        (w * w).sum().backward()
        lines.append(here(+1))
        optimizer.step()

    [stop] = new_stops(train)

    assert (stop.cause, at(stop.line)) == ("optimizer step", lines[0])


def test_bound_of_the_tape_is_at_the_line_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, device="pjrt")
    torch_pjrt.sync()
    monkeypatch.setattr(settings, "tape_limit", 20)

    def loop() -> tuple[str, int]:
        y = x
        for _ in range(30):
            line = here(+1)
            y = y + 1
        return line

    lines = []
    [stop] = new_stops(lambda: lines.append(loop()))

    assert (stop.cause, at(stop.line)) == ("the tape's limit", lines[0])


def test_operator_that_runs_on_the_cpu_is_named() -> None:
    library = torch.library.Library("torch_pjrt_why", "DEF")
    library.define("plus_one(Tensor x) -> Tensor")
    library.impl("plus_one", lambda x: x + 1, "CPU")
    x = torch.ones(3, device="pjrt")

    with pytest.warns(UserWarning, match="runs on the CPU"):
        [stop] = new_stops(lambda: torch.ops.torch_pjrt_why.plus_one(x.exp()))

    assert stop.cause == "CPU fallback of torch_pjrt_why.plus_one.default"
    assert stop.line is not None
    assert stop.line.file == __file__
    library._destroy()


def test_hook_in_backward_that_reads_is_at_its_line() -> None:
    w = torch.ones(3, device="pjrt", requires_grad=True)
    lines = []

    def look(gradient: torch.Tensor) -> None:
        lines.append(here(+1))
        gradient.sum().item()

    w.register_hook(look)

    [stop] = new_stops(lambda: (w * w).sum().backward())

    assert (stop.cause, at(stop.line)) == (".item()", lines[0])


def test_pytorchs_function_that_reads_is_named_at_the_users_line() -> None:
    w = torch.ones(3, device="pjrt", requires_grad=True)
    (w * w).sum().backward()

    [stop] = new_stops(lambda: torch.nn.utils.clip_grad_norm_([w], 1.0, error_if_nonfinite=True))

    assert stop.cause.startswith("control flow on a tensor (bool) in ")
    assert stop.line is not None
    assert stop.line.file == __file__


def test_value_that_was_computed_before_is_a_read_and_no_sync() -> None:
    x = torch.ones(3, device="pjrt").exp()
    torch_pjrt.sync()
    lines = []

    def read() -> None:
        for _ in range(3):
            lines.append(here(+1))
            x.tolist()

    assert new_stops(read) == []
    [stop] = [s for s in stops() if at(s.line) == lines[0]]
    assert (stop.cause, stop.syncs, stop.reads) == (".tolist()", 0, 3)


def test_syncs_at_one_line_are_counted_together() -> None:
    x = torch.ones(3, device="pjrt")

    [stop] = new_stops(lambda: (x.exp().tolist(), x.sin().tolist()))

    assert (stop.cause, stop.syncs) == (".tolist()", 2)


def test_syncs_are_logged_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(3, device="pjrt").exp()
    monkeypatch.setattr(settings, "log", {"sync"})

    with caplog.at_level(logging.INFO, "torch_pjrt"):
        x.tolist()

    [text] = [r.getMessage() for r in caplog.records]
    assert text.startswith("sync because of .tolist() at ")
    assert "test_why_it_synced.py" in text


def test_report_shows_cause_and_line() -> None:
    torch.ones(3, device="pjrt").exp().sum().item()

    rows = torch_pjrt.report().as_dict()["stops"]

    assert any(
        row["cause"] == ".item()" and row["line"][0] == __file__ and row["syncs"] == 1
        for row in rows
    )


def test_reader_is_named_where_another_function_stands_before_pytorchs(python: Run) -> None:
    """`torch_xla` has `.to` take its devices, too."""
    script = """
import torch, torch_pjrt, torch_xla
from torch_pjrt.observe.stops import stops
x = torch.ones(3, device="pjrt")
torch_pjrt.sync()
x.exp().to("cpu")
assert ".to()" in {s.cause for s in stops()}, stops()
"""
    python(script)
