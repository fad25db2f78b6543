"""The padding of selected rows shows nowhere: sizes are compared, and errors raised, by their true size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

Tensor = torch.Tensor

ROWS = torch.arange(20.0).reshape(10, 2)
MASK = torch.arange(10) < 3  # three rows, with room for ten


def positions(n: int, device: torch.device) -> Tensor:
    return torch.zeros(n, 2, dtype=torch.int64, device=device)


#   what needs more than three rows        the computation, of the selected rows
TOO_LARGE: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda y: y.gather(1, positions(5, y.device)),
    "scatter of a number": lambda y: y.scatter(1, positions(5, y.device), 7.0),
    "scatter of rows": lambda y: y.new_zeros(9, 2).scatter(1, positions(5, y.device), y),
    "scatter_add_": lambda y: y.new_zeros(9, 2).scatter_add_(0, positions(5, y.device), y),
    "index_add": lambda y: y.index_add(1, positions(1, y.device)[0], y.new_ones(10, 2)),
    "addition": lambda y: y + y.new_ones(10, 2),
}

#   what needs no more                      the computation
FITTING: dict[str, Callable[[Tensor], Tensor]] = {
    "gather": lambda y: y.gather(1, positions(2, y.device)),
    "scatter of rows": lambda y: y.new_zeros(9, 2).scatter(0, positions(2, y.device)[:, :1], y),
    "index_add": lambda y: y.index_add(1, positions(1, y.device)[0], y),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_needs_more_rows_than_selected_is_refused_in_words_of_the_cpu(name: str) -> None:
    compute = TOO_LARGE[name]

    with pytest.raises(RuntimeError) as expected:
        compute(ROWS[MASK])
    with pytest.raises(RuntimeError) as caught:
        compute(ROWS.to("pjrt")[MASK.to("pjrt")]).cpu()

    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize("name", FITTING)
def test_what_needs_no_more_rows_than_selected_is_as_on_cpu(name: str) -> None:
    compute = FITTING[name]

    got = compute(ROWS.to("pjrt")[MASK.to("pjrt")])

    torch.testing.assert_close(got.cpu(), compute(ROWS[MASK]))


def test_tensors_of_the_size_that_was_selected_have_no_room() -> None:
    device = torch.device("pjrt")
    table = torch.ones(5, 2, device=device, requires_grad=True)
    selected = ROWS.to(device)[MASK.to(device)]

    F.embedding(torch.full((len(selected),), 1, device=device) % 5, table).sum().backward()

    assert table.grad is not None
    assert table.grad.sum(1).tolist() == [0, 6, 0, 0, 0]


def test_masks_that_share_an_array_and_lie_differently_select_each_its_own() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    mask = torch.tensor([[True, False], [False, False], [True, True]])

    def selected(x: Tensor, by_rows: Tensor) -> list[list[float]]:
        by_columns = torch.empty_strided((3, 2), (1, 3), dtype=torch.bool, device=x.device)
        by_columns.copy_(by_rows)
        return [x[by_rows.view(2, 3)].tolist(), x[by_columns.t()].tolist()]

    assert selected(x.to("pjrt"), mask.to("pjrt")) == selected(x, mask)
