"""Operators of our own, in the namespace `torch_pjrt`: what PyTorch has no functional operator for.

Each has a kernel for the CPU that says what it computes, and shapes for the meta device. Users call none.

    fill_rest      `self` with `value` from index `count * scale` on along `dim`.
    unique         the elements of a 1-d tensor without repetition, in order, with room for as many as it has:
                   values, for each element its index among them, how often each occurs, how many there
                   are. What is past those is 0. Only the first `count` elements of `self` are there.
                   `consecutive` drops repetitions of neighbours only and keeps the order.
    unique_rows    the same of the rows of a 2-d tensor.
    fault          the first fault of a kind in a tensor, from 1 on; 0 if it has none (`FAULTS`).
    weights_fault  what is wrong with rows of weights to draw by: 1 if one is less than 0 or nan, 2 if one
                   is infinite, 3 if a row sums to 0; 0 if nothing is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor

_library = torch.library.Library("torch_pjrt", "DEF")
_UNIQUE = "(Tensor self, Tensor? count, bool consecutive) -> (Tensor, Tensor, Tensor, Tensor)"
_library.define("fill_rest(Tensor self, Tensor count, int dim, int scale, Scalar value) -> Tensor")
_library.define(f"unique{_UNIQUE}")
_library.define(f"unique_rows{_UNIQUE}")
_library.define("weights_fault(Tensor self) -> Tensor")
_library.define("fault(Tensor self, str kind) -> Tensor")

fill_rest = torch.ops.torch_pjrt.fill_rest.default
unique = torch.ops.torch_pjrt.unique.default
unique_rows = torch.ops.torch_pjrt.unique_rows.default
weights_fault = torch.ops.torch_pjrt.weights_fault.default
fault = torch.ops.torch_pjrt.fault.default

# What is counted, in order: elements, matrices of a batch, or elements of the diagonals.
FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "less than 0": lambda x: x < 0,
    "not at least 0": lambda x: ~(x >= 0),
    "no chance": lambda x: ~((x >= 0) & (x <= 1)),
    "zero": lambda x: x == 0,
    "zero on the diagonal": lambda x: x.diagonal(dim1=-2, dim2=-1) == 0,
    "nan in a matrix": lambda x: x.isnan().any(-1).any(-1),
    "nan below the diagonal": lambda x: x.tril().isnan().any(-1).any(-1),
    "nan above the diagonal": lambda x: x.triu().isnan().any(-1).any(-1),
    "not finite": lambda x: ~x.isfinite(),
    "not finite in a matrix": lambda x: ~x.isfinite().all(-1).all(-1),
}


def _fill_rest(self: Tensor, count: Tensor, dim: int, scale: int, value: float) -> Tensor:
    first = int(count) * scale
    result = self.clone()
    result.narrow(dim, first, self.shape[dim] - first).fill_(value)
    return result


def _unique(
    self: Tensor, count: Tensor | None, consecutive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n = len(self) if count is None else int(count)
    there = self[:n]
    if consecutive:
        found = torch.unique_consecutive(there, return_inverse=True, return_counts=True, dim=0)
    else:
        found = torch.unique(there, return_inverse=True, return_counts=True, dim=0)
    results = [
        self.new_zeros(self.shape),
        torch.zeros(len(self), dtype=torch.int64, device="cpu"),
        torch.zeros(len(self), dtype=torch.int64, device="cpu"),
    ]
    for result, part in zip(results, found, strict=True):
        result[: len(part)] = part
    return results[0], results[1], results[2], torch.tensor(len(found[0]), device="cpu")


def _meta_unique(
    self: Tensor, count: Tensor | None, consecutive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    positions = self.new_empty(self.shape[:1], dtype=torch.int64)
    return (
        self.new_empty(self.shape),
        positions,
        torch.empty_like(positions),
        positions.new_empty(()),
    )


def _weights_fault(self: Tensor) -> Tensor:
    if not bool((self >= 0).all()):
        return torch.tensor(1, device="cpu")
    if bool(self.isinf().any()):
        return torch.tensor(2, device="cpu")
    return torch.tensor(3 if bool((self == 0).all(-1).any()) else 0, device="cpu")


def _fault(self: Tensor, kind: str) -> Tensor:
    found = FAULTS[kind](self).flatten().nonzero()
    return torch.tensor(1 + int(found[0]) if len(found) else 0, device="cpu")


_library.impl("fault", _fault, "CPU")
_library.impl("fault", lambda self, kind: self.new_empty((), dtype=torch.int64), "Meta")
_library.impl("weights_fault", _weights_fault, "CPU")
_library.impl("weights_fault", lambda self: self.new_empty((), dtype=torch.int64), "Meta")
_library.impl("fill_rest", _fill_rest, "CPU")
_library.impl("fill_rest", lambda self, count, dim, scale, value: torch.empty_like(self), "Meta")
for _name in ("unique", "unique_rows"):
    _library.impl(_name, _unique, "CPU")
    _library.impl(_name, _meta_unique, "Meta")
