"""Determinants: their backward reads the saved LU factors by the strides that the matrix had.

PyTorch's backward takes them for those of the transposed matrix if a real matrix was contiguous, and for
those of the matrix itself if not. A rule cannot see strides, so it always factors the former way, and a
matrix that is not contiguous is handed to it transposed: the determinant is the same.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record


def _linalg_det(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return record.call(aten._linalg_det.default, (_as_saved(A),), {})


def _linalg_slogdet(A: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return record.call(aten._linalg_slogdet.default, (_as_saved(A),), {})


def _as_saved(A: torch.Tensor) -> torch.Tensor:
    return A if A.is_complex() or A.is_contiguous() or A.ndim < 2 else A.mT


KERNELS: dict[Any, Any] = {
    aten._linalg_det.default: _linalg_det,
    aten._linalg_slogdet.default: _linalg_slogdet,
}
