"""Collectives are those that one expects by hand, with their axis, bytes and line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torch_pjrt
from torch_pjrt_spmd import Mesh, collectives, distribute_tensor, mark_sharding


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def double(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * 2


BOTH = ("data", "model")
#   what is computed               of x (16, 32) and w (32, 8), and how x, w and the result lie
CASES: dict[str, tuple[Any, Any, Any, Any, list[tuple[str, tuple[str, ...], int]]]] = {
    "nothing to exchange":          (product, ("data", None), (None, "model"), BOTH, []),
    "a sum over the contracted dim":
        (product, BOTH, ("model", None), ("data", None), [("all-reduce", ("model",), 8 * 8 * 4)]),
    "a sum over all chips":
        (product, (None, BOTH), (BOTH, None), (), [("all-reduce", BOTH, 16 * 8 * 4)]),
    "a result that is whole":
        (double, ("data", None), (), (), [("all-gather", ("data",), 16 * 32 * 4)]),
    "a dim that moves to another axis":
        (double, ("model", None), (), (None, "model"), [("all-to-all", ("model",), 4 * 32 * 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_chips_exchange_what_one_expects(name: str) -> None:
    compute, of_x, of_w, of_y, expected = CASES[name]
    mesh = Mesh((2, 4), ("data", "model"))
    x, w = torch.ones(16, 32), torch.ones(32, 8)
    ours = distribute_tensor(x, mesh, of_x), distribute_tensor(w, mesh, of_w)

    with torch_pjrt.source_lines():
        y = mark_sharding(compute(*ours), mesh, of_y)
        torch_pjrt.sync()

    last = torch_pjrt.report().programs[-1].number
    found = [c for c in collectives() if c.program == last]
    assert [(c.kind, c.axes, c.n_bytes) for c in found] == expected
    assert all(c.times == 1 for c in found)
    assert all(c.line is not None and c.line.startswith("test_collectives.py:") for c in found)
    assert torch.equal(y.cpu(), compute(x, w))
