"""Indexing with boolean masks: how many elements are selected is known only from the mask's values.

A mask that only says where one value goes is a `where`. Otherwise its true positions become integer indices,
whose number is read: one sync, and padded tensors from there on (`tensor/padding/padded.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.padding.data_dependent import positions_of
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.mixed_devices import mismatch
from torch_pjrt.tensor.storage.overlap import refuse_overlap

Indices = Sequence[torch.Tensor | None]
_MASKS = (torch.bool, torch.uint8)
_DEPRECATED = (
    "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead."
)


def index(self: torch.Tensor, indices: Indices) -> torch.Tensor:
    return record.call(aten.index.Tensor, (self, without_masks(self, indices)), {})


def _unsafe_index(self: torch.Tensor, indices: Indices) -> torch.Tensor:
    return record.call(aten._unsafe_index.Tensor, (self, without_masks(self, indices)), {})


def index_put(
    self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return _put(aten.index_put.default, self, indices, values, accumulate)


def index_put_(
    self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    return _put(aten.index_put_.default, self, indices, values, accumulate)


def _index_put_impl_(
    self: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    return _put(aten.index_put_.default, self, indices, values, accumulate)


def _put(
    op: Any, self: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool
) -> torch.Tensor:
    if not is_pjrt(self):
        if values.ndim or not is_pjrt(values):
            raise mismatch(self.device)
        # As on every accelerator, a value without dims is moved to the tensor.
        return op(self, indices, values.to(self.device), accumulate)
    mask = indices[0] if len(indices) == 1 else None
    if (
        isinstance(mask, torch.Tensor)
        and mask.dtype in _MASKS
        and values.numel() == 1
        and not accumulate
        and self.shape[: mask.ndim] == mask.shape
    ):
        mask = mask.to(self.device).reshape(mask.shape + (1,) * (self.ndim - mask.ndim))
        if mask.dtype == torch.uint8:
            raise RuntimeError(
                "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char"
            )
        filled = torch.where(mask, values.to(self).reshape(()), self)
        return self.copy_(filled) if op is aten.index_put_.default else filled
    if op is aten.index_put_.default:
        refuse_overlap(self, values)
    return record.call(op, (self, without_masks(self, indices), values, accumulate), {})


def without_masks(self: torch.Tensor, indices: Indices) -> list[torch.Tensor | None]:
    """The indices with every mask replaced by the integer indices of its true positions.

    Raises PyTorch's `IndexError` where a mask's shape does not match the dims that it indexes.
    """
    if not any(i is not None and i.dtype in _MASKS for i in indices):
        return list(indices)
    result: list[torch.Tensor | None] = []
    for given in indices:
        if given is None or given.dtype not in _MASKS:
            result.append(given)
            continue
        if given.dtype == torch.uint8:
            warnings.warn(_DEPRECATED, stacklevel=4)
        for j in range(given.ndim):
            dim = len(result) + j
            if dim >= self.ndim or given.shape[j] != self.shape[dim]:
                raise IndexError(
                    f"The shape of the mask {list(given.shape)} at index {j} does not match the shape "
                    f"of the indexed tensor {list(self.shape)} at index {dim}"
                )
        result += positions_of(given.to(self.device))
    return result


KERNELS: dict[Any, Any] = {
    aten.index.Tensor: index,
    aten._unsafe_index.Tensor: _unsafe_index,
    aten.index_put.default: index_put,
    aten.index_put_.default: index_put_,
    aten._index_put_impl_.default: _index_put_impl_,
}
