"""Sparse operators written with the device's own on the parts.

Each takes the usual cases and leaves the others, and what PyTorch refuses, to the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording.fallback import run_on_cpu
from torch_pjrt.tensor.storage.sparse_parts import BY_COLUMNS, parts_of, put_together

COO, COMPRESSED, DENSE = "SparsePrivateUse1", "SparseCsrPrivateUse1", "PrivateUse1"
_MATRICES = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
_MULTIPLIED = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _to_dense(
    self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """Zeros to which the values are added, so that what is not coalesced counts too."""
    if dtype is not None:
        return run_on_cpu(aten._to_dense.default, (self, dtype, masked_grad), {})  # refused there
    if self.sparse_dim() == 0:
        return self._values().sum(0, dtype=self.dtype)
    return _scattered(self, self._indices(), self._values())


def _to_dense_compressed(
    self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    if (
        dtype is not None
        or self.layout not in (torch.sparse_csr, torch.sparse_csc)
        or self.dim() > 2
    ):
        return run_on_cpu(aten._to_dense.default, (self, dtype, masked_grad), {})
    return _scattered(self, _positions(self), self.values())


def _scattered(like: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    return zeros.index_put_(tuple(indices.unbind(0)), values, accumulate=True)


def _coalesce(self: torch.Tensor) -> torch.Tensor:
    """Sorted indices, each once, with the sum of the values that were there."""
    if self._nnz() < 2 or self.sparse_dim() == 0:
        return run_on_cpu(aten._coalesce.default, (self,), {}, is_asked_for=self._nnz() < 2)
    sizes = self.shape[: self.sparse_dim()]
    flat, values = _numbered(self), self._values()
    flat, where = torch.unique(flat, return_inverse=True)
    summed = values.new_zeros((len(flat), *values.shape[1:])).index_add_(0, where, values)
    positions = []
    for size in reversed(sizes):
        positions.append(flat % size)
        flat = flat // size
    return put_together(self, (torch.stack(positions[::-1]), summed), is_coalesced=True)


def _sparse_mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What `self` has at the indices of `mask`: 0 where it is sparse and has nothing there."""
    if self.layout is torch.sparse_coo and self._nnz() and _are_alike(self, mask):
        return _projected(self, mask)
    if self.layout is not torch.strided or self.shape != mask.shape or not mask.sparse_dim():
        return run_on_cpu(aten.sparse_mask.default, (self, mask), {})
    indices = mask._indices().clone()
    values = self[tuple(indices.unbind(0))]
    return put_together(mask, (indices, values), mask.is_coalesced())


def _sparse_mask_projection(
    self: torch.Tensor, mask: torch.Tensor, accumulate_matches: bool = False
) -> torch.Tensor:
    if not self._nnz() or not _are_alike(self, mask):
        args = (self, mask, accumulate_matches)
        return run_on_cpu(aten._sparse_mask_projection.default, args, {})
    return _projected(self, mask)


def _are_alike(self: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether both number their indices alike, and no index of `self` is there twice."""
    return (
        self.is_coalesced()
        and self.shape == mask.shape
        and self.sparse_dim() == mask.sparse_dim() > 0
    )


def _projected(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    numbers, wanted, values = _numbered(self), _numbered(mask), self._values()
    positions = torch.searchsorted(numbers, wanted).clamp(max=len(numbers) - 1)
    is_there = (numbers[positions] == wanted).view(-1, *[1] * self.dense_dim())
    found = torch.where(is_there, values[positions], values.new_zeros(()))
    return put_together(mask, (mask._indices().clone(), found), mask.is_coalesced())


def _sparse_mask_compressed(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if self.layout is not torch.strided or self.shape != mask.shape or not _is_matrix(mask):
        return run_on_cpu(aten.sparse_mask.default, (self, mask), {})
    rows, columns, _ = _entries(mask)
    return _with_values(mask, self[rows, columns])


def _mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """Rows of the dense matrix (its columns, if it is the left one), each times a value, added up."""
    sparse, dense = (mat2, self) if self.layout is torch.strided else (self, mat2)
    if not (
        dense.layout is torch.strided
        and _is_matrix(sparse)
        and dense.dim() == 2
        and self.shape[1] == mat2.shape[0]
        and _are_multiplied(self, mat2)
    ):
        return run_on_cpu(aten.mm.default, (self, mat2), {})
    rows, columns, values = _entries(sparse)
    zeros = dense.new_zeros(self.shape[0], mat2.shape[1])
    if sparse is self:
        return zeros.index_add_(0, rows, values[:, None] * dense[columns])
    return zeros.index_add_(1, columns, values * dense[:, rows])


def _addmm(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """`beta * self + alpha * (mat1 @ mat2)`; where `beta` is 0, `self` is not looked at."""
    args = (self, mat1, mat2)
    shape = (mat1.shape[0], mat2.shape[-1])
    if self.layout is not torch.strided or self.dtype != mat2.dtype or self.shape != shape:
        return run_on_cpu(aten.addmm.default, args, {"beta": beta, "alpha": alpha})
    product = mat1.mm(mat2)
    product = product if alpha == 1 else product * alpha
    if not beta:
        return product
    return product + (self if beta == 1 else self * beta)


def _sparse_sampled_addmm(
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> torch.Tensor:
    """`beta * self + alpha * (mat1 @ mat2)` at the indices of `self`; nothing else is computed."""
    if not (
        _is_matrix(self)
        and mat1.dim() == mat2.dim() == 2
        and mat1.shape[1] == mat2.shape[0]
        and self.shape == (mat1.shape[0], mat2.shape[1])
        and self.layout is torch.sparse_csr
        and mat1.layout is mat2.layout is torch.strided
        and _are_multiplied(self, mat1, mat2)
    ):
        args, kwargs = (self, mat1, mat2), {"beta": beta, "alpha": alpha}
        return run_on_cpu(aten.sparse_sampled_addmm.default, args, kwargs)
    rows, columns, values = _entries(self)
    products = (mat1[rows] * mat2.t()[columns]).sum(1)
    return _with_values(self, products * alpha + values * beta)


def _is_matrix(tensor: torch.Tensor) -> bool:
    return tensor.layout in _MATRICES and (tensor.dim(), tensor.dense_dim()) == (2, 0)


def _are_multiplied(*factors: torch.Tensor) -> bool:
    dtype = factors[0].dtype
    return dtype in _MULTIPLIED and all(f.dtype == dtype for f in factors)


def _entries(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The row, the column and the value of each entry."""
    if matrix.layout is torch.sparse_coo:
        rows, columns = matrix._indices()
        return rows, columns, matrix._values()
    rows, columns = _positions(matrix)
    return rows, columns, matrix.values()


def _positions(matrix: torch.Tensor) -> torch.Tensor:
    """The indices that a CSR or CSC matrix would have as COO."""
    compressed, plain, _ = parts_of(matrix)
    is_by_columns = matrix.layout in BY_COLUMNS
    return torch._convert_indices_from_csr_to_coo(compressed, plain, transpose=is_by_columns)  # pyright: ignore[reportPrivateImportUsage]


def _numbered(sparse: torch.Tensor) -> torch.Tensor:
    """The indices of a COO tensor as one number each, in the same order."""
    indices = sparse._indices()
    flat = indices[0]
    for size, positions in zip(sparse.shape[1:], indices[1:], strict=False):
        flat = flat * size + positions
    return flat


def _with_values(like: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A matrix with the indices of `like`."""
    compressed, plain, _ = parts_of(like)
    return put_together(like, (compressed.clone(), plain.clone(), values))


KERNELS: dict[tuple[Any, str], Callable[..., Any]] = {
    (aten._to_dense.default, COO): _to_dense,
    (aten._to_dense.default, COMPRESSED): _to_dense_compressed,
    (aten._coalesce.default, COO): _coalesce,
    (aten.sparse_mask.default, COO): _sparse_mask,
    (aten._sparse_mask_projection.default, COO): _sparse_mask_projection,
    (aten.sparse_mask.default, COMPRESSED): _sparse_mask_compressed,
    (aten.sparse_sampled_addmm.default, COMPRESSED): _sparse_sampled_addmm,
    (aten.mm.default, COO): _mm,
    (aten.mm.default, COMPRESSED): _mm,
    (aten.addmm.default, COO): _addmm,
    (aten.addmm.default, COMPRESSED): _addmm,
}
