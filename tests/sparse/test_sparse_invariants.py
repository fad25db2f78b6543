"""Parts that make no sparse tensor are refused as on the CPU where invariants are checked; others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Make = Callable[[Any], torch.Tensor]


def csr(t: Make, rows: Any, columns: Any, values: Any = (1.0, 2.0)) -> torch.Tensor:
    return torch.sparse_csr_tensor(t(rows), t(columns), t(values), (2, 2))


def csc(t: Make, columns: Any, rows: Any) -> torch.Tensor:
    return torch.sparse_csc_tensor(t(columns), t(rows), t([1.0, 2.0]), (2, 2))


def bsr(t: Make, rows: Any, columns: Any) -> torch.Tensor:
    return torch.sparse_bsr_tensor(t(rows), t(columns), t([[[1.0]], [[2.0]]]), (2, 2))


def bsc(t: Make, columns: Any, rows: Any) -> torch.Tensor:
    return torch.sparse_bsc_tensor(t(columns), t(rows), t([[[1.0]], [[2.0]]]), (2, 2))


def coo(t: Make, indices: Any, _: Any) -> torch.Tensor:
    return torch.sparse_coo_tensor(t(indices), t([1.0, 2.0]), (2, 2))


MAKERS = {"CSR": csr, "CSC": csc, "BSR": bsr, "BSC": bsc}
COMPRESSED = {
    "good": ([0, 1, 2], [0, 1]),
    "good with an empty row": ([0, 0, 2], [0, 1]),
    "not from 0": ([1, 2, 2], [0, 1]),
    "not to the number": ([0, 1, 3], [0, 1]),
    "less than the number": ([0, 1, 1], [0, 1]),
    "decreasing": ([0, 3, 2], [0, 1]),
    "more than the size": ([0, 1, 2], [0, 5]),
    "less than 0": ([0, 1, 2], [0, -1]),
    "not distinct": ([0, 2, 2], [1, 1]),
    "not sorted": ([0, 2, 2], [1, 0]),
    "too few": ([0, 2], [0, 1]),
}
OF_COO = {
    "good": [[0, 1], [1, 0]],
    "more than the size": [[0, 5], [1, 0]],
    "less than 0": [[0, 1], [-1, 0]],
    "of fewer dims": [[0, 1]],
    "of more dims": [[0, 1], [0, 1], [0, 1]],
}
CASES: dict[str, Callable[[Make], torch.Tensor]] = {
    **{
        f"{layout}, {name}": lambda t, maker=maker, parts=parts: maker(t, *parts)
        for layout, maker in MAKERS.items()
        for name, parts in COMPRESSED.items()
    },
    **{f"COO, {name}": lambda t, at=at: coo(t, at, None) for name, at in OF_COO.items()},
}


def from_host(values: Any) -> torch.Tensor:
    return torch.tensor(values, device="pjrt")


def on_device(values: Any) -> torch.Tensor:
    return torch.stack([from_host(values)])[0]


def outcome(name: str, make: Make) -> Any:
    with torch.sparse.check_sparse_tensor_invariants(True):
        try:
            return CASES[name](make).cpu().to_dense().tolist()
        except (RuntimeError, IndexError, ValueError) as error:
            return type(error), str(error).splitlines()[0]


# What checks the parts runs on the CPU.
@pytest.mark.filterwarnings("ignore:`aten._validate", "ignore:Sparse")
@pytest.mark.parametrize("make", [from_host, on_device])
@pytest.mark.parametrize("name", CASES)
def test_parts_are_taken_or_refused_as_on_the_cpu(name: str, make: Make) -> None:
    assert outcome(name, make) == outcome(name, torch.tensor)
    assert isinstance(outcome("CSR, good", make), list)
