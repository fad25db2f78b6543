"""Sparse tensors taken apart and put together: their indices and values are dense tensors.

A sparse tensor has no storage, so no buffer: it is a container of PyTorch's, on the CPU as on the device,
that holds dense tensors of its own device. To move one is to move those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_pjrt.overloads import aten

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)
BY_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)
LAYOUTS = frozenset((torch.sparse_coo, *BY_ROWS, *BY_COLUMNS))


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a container: COO, CSR, CSC, BSR or BSC."""
    return tensor.layout in LAYOUTS


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What the container holds: (indices, values), or (compressed indices, plain indices, values)."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in BY_ROWS:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def with_parts(like: torch.Tensor, move: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A container as `like`, which holds what `move` gives for each of its parts."""
    is_coalesced = like.layout is torch.sparse_coo and like.is_coalesced()
    return put_together(like, [move(part) for part in parts_of(like)], is_coalesced)


def put_together(
    like: torch.Tensor, parts: Sequence[torch.Tensor], is_coalesced: bool = False
) -> torch.Tensor:
    """A container of the layout, size and dims of `like`. Where its indices point is not checked.

    is_coalesced  whether, as COO, it has its indices in order and none twice.
    """
    values = parts[-1]
    look = {"dtype": values.dtype, "layout": like.layout, "device": values.device}
    if like.layout is not torch.sparse_coo:
        return aten._sparse_compressed_tensor_unsafe(*parts, like.shape, **look)
    dims = like.sparse_dim(), like.dense_dim()
    return aten._sparse_coo_tensor_with_dims_and_tensors(
        *dims, like.shape, *parts, **look, is_coalesced=is_coalesced
    )


def fill(target: torch.Tensor, source: torch.Tensor) -> None:
    """Make the content of `target` that of `source`, a container of its layout and device.

    Who holds a part of `target` sees it, where that part has kept its shape.
    """
    old, new = parts_of(target), parts_of(source)
    if target.shape == source.shape and [p.shape for p in old] == [p.shape for p in new]:
        for part, content in zip(old, new, strict=True):
            part.copy_(content)
        if target.layout is torch.sparse_coo:
            target._coalesced_(source.is_coalesced())
    elif target.layout is torch.sparse_coo:
        aten.sparse_resize_and_clear_(target, source.shape, source.sparse_dim(), source.dense_dim())
        aten.copy_sparse_to_sparse_(target, source)
    else:
        aten.resize_as_sparse_(target, source)
        fill(target, source)
