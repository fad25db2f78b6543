"""A loop that reads nothing does not grow the tape without end: it is run when it passes the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_pjrt
from fixture_types import Count
from torch_pjrt.graph.tape import state
from torch_pjrt.settings import Settings, settings


@pytest.fixture
def limit() -> Iterator[int]:
    torch_pjrt.sync()
    old, settings.tape_limit = settings.tape_limit, 20
    yield 20
    settings.tape_limit = old


def test_endless_loop_is_run_in_pieces(limit: int, compiled: Count) -> None:
    x = torch.zeros(3).to("pjrt")
    longest = 0

    for _ in range(200):
        x = x + 1
        longest = max(longest, len(state.tape.values))

    assert x.tolist() == [200, 200, 200]
    assert longest <= limit + 1
    assert compiled() <= 3, "the pieces are one program, beside the first and the last"


def test_in_place_loop_is_run_in_pieces(limit: int) -> None:
    x = torch.zeros(3, device="pjrt")

    for _ in range(300):
        x.add_(1)
        x[1:].mul_(1)

    assert x.tolist() == [300, 300, 300]
    assert len(state.tape.values) <= limit + 2


def test_backward_over_a_cut_gives_the_right_gradient(limit: int) -> None:
    x = torch.ones(3, device="pjrt", requires_grad=True)
    y = x

    for _ in range(60):
        y = y * 1.01
    y.sum().backward()

    torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 1.01**60))


def test_random_numbers_do_not_depend_on_where_the_tape_was_cut(limit: int) -> None:
    torch.manual_seed(0)
    pieces = [torch.rand(2, device="pjrt") + 0 for _ in range(30)]
    cut = torch.stack(pieces).cpu()
    settings.tape_limit = 10_000
    torch.manual_seed(0)
    whole = torch.stack([torch.rand(2, device="pjrt") + 0 for _ in range(30)]).cpu()

    assert torch.equal(cut, whole)


def test_every_kind_of_kernel_keeps_to_the_limit(limit: int) -> None:
    x = torch.ones(4, device="pjrt")
    kinds: list[Callable[[], object]] = [
        lambda: x.split(2),
        lambda: torch.cat([x, x]),
        lambda: x.topk(2),
        lambda: torch._foreach_add([x, x], 1.0),
        lambda: torch.zeros(3, device="pjrt"),
        lambda: torch.rand(3, device="pjrt"),
        lambda: x[1:].cumsum(0),
        lambda: torch.where(x > 0, x, 0.0),
    ]

    for kind in kinds:
        for _ in range(4 * limit):
            kind()
        assert len(state.tape.values) <= 2 * limit, kind
        torch_pjrt.sync()


def test_cut_counts_as_a_sync_of_its_own_cause(limit: int) -> None:
    before = torch_pjrt.report().as_dict()["syncs"].get("the tape's limit", 0)
    x = torch.zeros(3, device="pjrt")

    for _ in range(2 * limit):
        x = x + 1

    assert torch_pjrt.report().as_dict()["syncs"]["the tape's limit"] > before


def test_an_operator_over_lists_counts_once(limit: int, compiled: Count) -> None:
    xs = [torch.zeros(2, device="pjrt") for _ in range(50)]

    for _ in range(10):
        torch._foreach_add_(xs, 1.0)

    assert len(state.tape.values) >= 500, "nothing was run"
    assert [x.tolist() for x in xs] == [[10, 10]] * 50


def test_former_names_work_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PJRT_TAPE_BOUND", "7")
    with pytest.warns(FutureWarning, match="TORCH_PJRT_TAPE_LIMIT"):
        own = Settings()
    with pytest.warns(FutureWarning, match="tape_limit"):
        assert own.tape_bound == own.tape_limit == 7
    monkeypatch.setenv("TORCH_PJRT_TAPE_LIMIT", "8")

    assert Settings().tape_limit == 8
