"""`torch_pjrt.config.max_programs` ends endless recompilation with its reason, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest
import torch

import torch_pjrt
from torch_pjrt.compile import programs
from torch_pjrt.errors import TooManyPrograms
from torch_pjrt.run.client import client

Count = Callable[[], int]
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def most() -> Iterator[int]:
    torch_pjrt.sync()
    old, torch_pjrt.config.max_programs = torch_pjrt.config.max_programs, 3
    yield 3
    torch_pjrt.config.max_programs = old


def total(n: int) -> float:
    return (torch.ones(n, device="pjrt") * 2).sum().item()


def test_one_program_more_than_the_limit_raises_with_the_reason(compiled: Count, most: int) -> None:
    for n in range(1, most + 1):
        assert total(n) == 2 * n

    with pytest.raises(TooManyPrograms) as caught:
        total(9)

    assert compiled() == most
    assert caught.value.saw is not None
    assert "`aten.ones.default` has `size=[9]`; it was `[3]`" in caught.value.saw
    assert "Advice: let few shapes come by" in caught.value.saw
    assert "max_programs` = 3" in str(caught.value)


def test_known_programs_still_run_at_the_limit(compiled: Count, most: int) -> None:
    for n in range(1, most + 1):
        total(n)
    with pytest.raises(TooManyPrograms):
        total(9)
    torch_pjrt.config.max_programs += 1
    torch_pjrt.sync()
    torch_pjrt.config.max_programs -= 1

    assert [total(n) for n in (1, 2, 3)] == [2, 4, 6]


def test_what_was_recorded_is_computed_with_a_higher_limit(compiled: Count, most: int) -> None:
    x = torch.zeros(4).to("pjrt")
    for n in range(1, most + 1):
        total(n)
    x.add_(1)
    y = x * 3
    with pytest.raises(TooManyPrograms):
        y.tolist()
    z = y + 1

    torch_pjrt.config.max_programs = 100

    assert (x.tolist(), y.tolist(), z.tolist()) == ([1] * 4, [3] * 4, [4] * 4)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the process can hold no more programs, whenever one is made."""
    monkeypatch.setattr(programs, "_MADE_BETWEEN_QUESTIONS", 1)
    monkeypatch.setattr(client().device, "has_room_for_programs", lambda: False)


@pytest.mark.usefixtures("full")
def test_a_process_that_can_hold_no_more_gives_the_older_half_back(compiled: Count) -> None:
    known = len(programs._entries)

    values = [total(n) for n in range(1, 9)]

    assert values == [2, 4, 6, 8, 10, 12, 14, 16]
    assert len(programs._entries) < known + 8
    before = compiled()
    assert total(8) == 16
    assert compiled() == before
    assert total(1) == 2
    assert compiled() == before + 1


def test_a_captured_step_goes_on_when_its_program_is_given_back(
    request: pytest.FixtureRequest,
) -> None:
    step = torch_pjrt.capture(lambda x: x * 2 + 1)
    x = torch.ones(4, device="pjrt")
    for n in range(1, 30):  # among them a replay that is compared with its recording
        assert step(x).tolist() == [3] * 4
        if n == 4:
            request.getfixturevalue("full")
        total(n)

    assert step.replays > 20
    assert step.restarts == []


def test_limit_is_set_by_environment_variable(python: Run) -> None:
    script = """
import torch
for n in range(1, 9):
    print((torch.ones(n, device="pjrt") * 2).sum().item(), flush=True)
"""

    done = python(script, returncode=1, TORCH_PJRT_MAX_PROGRAMS="2")

    assert done.stdout.split() == ["2.0", "4.0"]
    assert "TooManyPrograms: 2 programs have been compiled, and one more is needed." in done.stderr


def test_unreadable_name_of_a_log_is_an_error(python: Run) -> None:
    script = "import torch; torch.ones(2, device='pjrt')"

    done = python(script, returncode=None, TORCH_PJRT_LOG="recompil")

    assert "TORCH_PJRT_LOG cannot be read." in done.stderr
    assert "recompile, sync" in done.stderr


def test_log_of_a_process_goes_to_stderr(python: Run) -> None:
    script = """
import torch
for n in (3, 4):
    (torch.ones(n, device="pjrt") * 2).tolist()
"""

    done = python(script, TORCH_PJRT_LOG="recompile,sync")

    assert "torch_pjrt: program 1 (2 operators)" in done.stderr
    assert "torch_pjrt: sync because of .tolist() at <string>:4" in done.stderr
    assert done.stdout == ""
