"""A loop that reads nothing does not grow the tape without end: it is run when it passes the bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_pjrt
from torch_pjrt.graph.tape import state
from torch_pjrt.settings import settings

Count = Callable[[], int]


@pytest.fixture
def bound() -> Iterator[int]:
    torch_pjrt.sync()
    old, settings.tape_bound = settings.tape_bound, 20
    yield 20
    settings.tape_bound = old


def test_endless_loop_is_run_in_pieces(bound: int, compiled: Count) -> None:
    x = torch.zeros(3).to("pjrt")
    longest = 0

    for _ in range(200):
        x = x + 1
        longest = max(longest, len(state.tape.values))

    assert x.tolist() == [200, 200, 200]
    assert longest <= bound + 1
    assert compiled() <= 3, "the pieces are one program, beside the first and the last"


def test_in_place_loop_is_run_in_pieces(bound: int) -> None:
    x = torch.zeros(3, device="pjrt")

    for _ in range(300):
        x.add_(1)
        x[1:].mul_(1)

    assert x.tolist() == [300, 300, 300]
    assert len(state.tape.values) <= bound + 2


def test_backward_over_a_cut_gives_the_right_gradient(bound: int) -> None:
    x = torch.ones(3, device="pjrt", requires_grad=True)
    y = x

    for _ in range(60):
        y = y * 1.01
    y.sum().backward()

    torch.testing.assert_close(x.grad.cpu(), torch.full((3,), 1.01**60))


def test_random_numbers_do_not_depend_on_where_the_tape_was_cut(bound: int) -> None:
    torch.manual_seed(0)
    pieces = [torch.rand(2, device="pjrt") + 0 for _ in range(30)]
    cut = torch.stack(pieces).cpu()
    settings.tape_bound = 10_000
    torch.manual_seed(0)
    whole = torch.stack([torch.rand(2, device="pjrt") + 0 for _ in range(30)]).cpu()

    assert torch.equal(cut, whole)


def test_every_kind_of_kernel_keeps_to_the_bound(bound: int) -> None:
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
        for _ in range(4 * bound):
            kind()
        assert len(state.tape.values) <= 2 * bound, kind
        torch_pjrt.sync()


def test_cut_counts_as_a_sync_of_its_own_cause(bound: int) -> None:
    before = torch_pjrt.report().as_dict()["syncs"].get("the tape's bound", 0)
    x = torch.zeros(3, device="pjrt")

    for _ in range(2 * bound):
        x = x + 1

    assert torch_pjrt.report().as_dict()["syncs"]["the tape's bound"] > before


def test_an_operator_over_lists_counts_once(bound: int, compiled: Count) -> None:
    xs = [torch.zeros(2, device="pjrt") for _ in range(50)]

    for _ in range(10):
        torch._foreach_add_(xs, 1.0)

    assert len(state.tape.values) >= 500, "nothing was run"
    assert [x.tolist() for x in xs] == [[10, 10]] * 50
