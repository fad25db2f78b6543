"""A view that is a slice of its base is one program, wherever the slice begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import torch_pjrt
from fixture_types import Count

#   what is read or written           at each of these offsets
SLICES: list[tuple[str, Callable[[torch.Tensor, int], torch.Tensor]]] = [
    ("row", lambda x, i: x[i]),
    ("column", lambda x, i: x[:, i]),
    ("rows", lambda x, i: x[i : i + 2]),
    ("inner", lambda x, i: x[1:3, i : i + 2]),
    ("transposed", lambda x, i: x.t()[i]),
    ("two elements", lambda x, i: x[i, i : i + 2]),
    ("reshaped", lambda x, i: x.view(6, 2, 3)[:, 1, i % 3]),
    ("element", lambda x, i: x[i, i]),
    ("broadcast", lambda x, i: x[i].expand(4, 6)),
]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("name", "slice_of"), SLICES, ids=[name for name, _ in SLICES])
def test_reading_at_other_offsets_is_one_program(
    name: str, slice_of: Callable[[torch.Tensor, int], torch.Tensor], compiled: Count
):
    host = torch.arange(36.0).reshape(6, 6)
    x = host.to("pjrt")
    for i in range(5):
        assert (slice_of(x, i) * 2).tolist() == (slice_of(host, i) * 2).tolist()
    assert compiled() == 2


@pytest.mark.slow("rows")
@pytest.mark.parametrize(("name", "slice_of"), SLICES[:-1], ids=[name for name, _ in SLICES[:-1]])
def test_writing_at_other_offsets_is_one_program(
    name: str, slice_of: Callable[[torch.Tensor, int], torch.Tensor], compiled: Count
):
    host = torch.arange(36.0).reshape(6, 6)
    x = host.to("pjrt")
    for i in range(5):
        for tensor in (host, x):
            slice_of(tensor, i).mul_(2)
        torch_pjrt.sync()
    assert compiled() == 2
    assert x.tolist() == host.tolist()


def test_training_on_slices_of_one_tensor_compiles_no_more_than_on_batches(compiled: Count):
    def train(batches: Iterator[torch.Tensor]) -> int:
        model = nn.Linear(3, 1).to("pjrt")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch_pjrt.sync()
        before = compiled()
        for x in batches:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return compiled() - before

    data = torch.randn(10, 4, 3)
    moved = data.flatten(0, 1).to("pjrt")
    of_batches = train(x.to("pjrt") for x in data)
    assert train(moved[i : i + 4] for i in range(0, 40, 4)) == of_batches + 1


def test_a_cache_of_keys_is_written_by_one_program(compiled: Count):
    cache, host = torch.zeros(2, 16, 4, device="pjrt"), torch.zeros(2, 16, 4)
    torch_pjrt.sync()
    before = compiled()
    for position in range(16):
        new = torch.full((2, 1, 4), float(position))
        host[:, position : position + 1] = new
        cache[:, position : position + 1] = new.to("pjrt")
        torch_pjrt.sync()
    assert torch.equal(cache.cpu(), host)
    assert compiled() - before == 2


def test_gradients_flow_to_the_right_elements():
    weights = [
        torch.zeros(6, 3, requires_grad=True),
        torch.zeros(6, 3, device="pjrt", requires_grad=True),
    ]
    for weight in weights:
        for i in range(4):
            (weight[i : i + 2] * (i + 1)).sum().backward()
            torch_pjrt.sync()
    assert weights[0].grad is not None
    assert weights[1].grad is not None
    assert weights[1].grad.tolist() == weights[0].grad.tolist()
