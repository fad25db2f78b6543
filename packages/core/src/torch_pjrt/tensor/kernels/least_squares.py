"""Least squares: two of LAPACK's drivers give residuals only where every matrix has full rank.

That is a shape which depends on values, so the ranks are read. The other drivers read nothing. Solutions
lie in the memory of the right-hand sides, so those of more equations than unknowns have gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.storage.transfer import host_view

_BY_SINGULAR_VALUES = ("gelsd", "gelss")


def _kernel(op: Any) -> Callable[..., Any]:
    def linalg_lstsq(
        self: torch.Tensor,
        b: torch.Tensor,
        rcond: float | None = None,
        *,
        driver: str | None = None,
        **out: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        results = record.call(op, (self, b, rcond), {"driver": driver, **out})
        gaps = self.shape[-2] - self.shape[-1]
        if not out and gaps > 0:
            results = (_with_gaps(results[0], gaps, is_vector=b.ndim < self.ndim), *results[1:])
        if driver in _BY_SINGULAR_VALUES:
            _, residuals, rank, _ = results
            if residuals.numel() and bool((host_view(rank) < self.shape[-1]).any()):
                residuals.resize_(0)
        return results

    return linalg_lstsq


def _with_gaps(x: torch.Tensor, gaps: int, *, is_vector: bool) -> torch.Tensor:
    """The tensor as a view of columns that are longer."""
    by_columns = x if is_vector else x.mT
    whole = torch.nn.functional.pad(by_columns, (0, gaps))[..., : by_columns.shape[-1]]
    return whole if is_vector else whole.mT


KERNELS: dict[Any, Any] = {
    op: _kernel(op) for op in (aten.linalg_lstsq.default, aten.linalg_lstsq.out)
}
