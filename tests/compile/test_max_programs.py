"""`max_programs` ends endless recompilation with its reason, `max_program_bytes` bounds memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import torch_pjrt
from fixture_types import Count, Run
from quickly import compiled_quickly  # noqa: F401  all tests here
from torch_pjrt.client.client import client
from torch_pjrt.compile import eviction, programs
from torch_pjrt.errors import TooManyPrograms


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
    monkeypatch.setattr(eviction, "_MADE_BETWEEN_QUESTIONS", 1)
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


@pytest.fixture
def room_for_four(compiled: Count) -> Iterator[None]:
    """Four programs of `total` may be held."""
    old = torch_pjrt.config.max_program_bytes
    total(100)
    [program] = [p for e in programs._entries.values() for p in e.variants.values()]
    torch_pjrt.config.max_program_bytes = 4 * eviction.bytes_of(program)
    yield
    torch_pjrt.config.max_program_bytes = old


@pytest.mark.usefixtures("room_for_four")
def test_what_ran_longest_ago_is_given_back(compiled: Count) -> None:
    for n in range(1, 12):
        assert (total(n), total(100)) == (2 * n, 200)
        assert len(programs._entries) <= 4

    before = compiled()
    assert [total(n) for n in (100, 11, 10)] == [200, 22, 20]
    assert compiled() == before
    assert total(1) == 2
    assert compiled() == before + 1
    assert torch_pjrt.report().counts["programs_given_back"] >= 8


@pytest.mark.usefixtures("room_for_four")
def test_nothing_holds_the_code_of_a_program_that_was_given_back() -> None:
    def held() -> int:
        gc.collect()
        return len(client().chip.client.live_executables())

    before = held()
    for n in range(1, 30):
        total(n)

    assert held() <= before + 4


@pytest.mark.usefixtures("room_for_four")
def test_a_program_that_is_too_large_alone_is_kept_until_the_next(compiled: Count) -> None:
    torch_pjrt.config.max_program_bytes = 1
    before = compiled()

    assert [total(n) for n in (7, 7, 8, 8, 7)] == [14, 14, 16, 16, 14]
    assert compiled() == before + 3


@pytest.mark.usefixtures("room_for_four")
def test_a_program_that_comes_back_says_why(compiled: Count) -> None:
    for n in (*range(1, 9), 1):
        total(n)

    why = torch_pjrt.report().programs[-1].why

    assert why is not None
    assert (why.kind, "given back" in why.advice) == ("again", True)


@pytest.mark.usefixtures("room_for_four")
def test_programs_that_were_given_back_count_for_the_limit(compiled: Count) -> None:
    old, torch_pjrt.config.max_programs = torch_pjrt.config.max_programs, 9
    try:
        assert [total(n) for n in range(1, 9)] == list(range(2, 18, 2))
        with pytest.raises(TooManyPrograms):
            total(9)
        torch_pjrt.config.max_programs += 1
        torch_pjrt.sync()
        assert [total(n) for n in (1, 2, 100)] == [2, 4, 200]
    finally:
        torch_pjrt.config.max_programs = old


@pytest.mark.usefixtures("room_for_four")
def test_a_captured_step_goes_on_when_there_is_no_room_for_its_program() -> None:
    model = torch.nn.Linear(4, 4).to("pjrt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step, x = torch_pjrt.capture(train), torch.ones(2, 4, device="pjrt")
    first = step(x).item()
    for n in range(1, 20):
        assert step(x).item() == first
        total(n)

    assert step.replays > 10
    assert step.restarts == []


@pytest.mark.slow
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
