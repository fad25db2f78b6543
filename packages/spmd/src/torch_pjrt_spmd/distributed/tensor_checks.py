"""What a collective's tensors must be, as far as one rank can see: looked at when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch

from torch_pjrt_spmd.distributed.errors import CollectiveError

Tensors = Sequence[torch.Tensor]


def check_dtypes(what: str, tensors: Iterable[torch.Tensor]) -> None:
    """Raise where they are of several dtypes."""
    dtypes = list(dict.fromkeys(x.dtype for x in tensors))
    if len(dtypes) > 1:
        raise CollectiveError(
            f"The tensors of {what} are of one dtype.", saw=" and ".join(map(str, dtypes))
        )


def check_number(what: str, side: str, tensors: Sequence[object], n: int) -> None:
    """Raise where there is not one for each rank."""
    if len(tensors) != n:
        raise CollectiveError(
            f"The {side} of {what} have one tensor for each rank of the group.",
            saw=f"{len(tensors)} tensors, {n} ranks",
        )


def check_shape(what: str, name: str, tensor: torch.Tensor, shape: Sequence[int]) -> None:
    """Raise where it has another number of elements than a tensor of this shape."""
    if tensor.numel() != prod(shape):
        raise CollectiveError(
            f"{name} of {what} has another number of elements than it gets or gives.",
            saw=f"{list(tensor.shape)}, {tensor.numel()} elements",
            expected=f"{list(shape)}, or as many elements",
        )


def check_parts(what: str, whole: Tensors, parts: Tensors, n: int) -> None:
    """Raise where n tensors like a part are not what the whole has, pair by pair."""
    for large, small in zip(whole, parts, strict=True):
        check_dtypes(what, (large, small))
        check_shape(what, "The large tensor", large, (n, *small.shape))


def check_list(what: str, tensors: Tensors, one: torch.Tensor, own: int, n: int) -> None:
    """Raise where there is not one tensor for each rank, its own like `one`."""
    check_number(what, "lists", tensors, n)
    check_dtypes(what, (*tensors, one))
    check_shape(what, "A tensor in the list", tensors[own], one.shape)


def check_each(what: str, tensors: Tensors, one: torch.Tensor) -> None:
    """Raise where there is a tensor that is not like `one`."""
    for tensor in tensors:
        check_dtypes(what, (tensor, one))
        check_shape(what, "A tensor in the list", tensor, one.shape)


def check_splits(what: str, name: str, tensor: torch.Tensor, splits: Sequence[int], n: int) -> None:
    """Raise where the tensor's first dim is not the sum of splits; none: where ranks do not divide it."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits and rows % n:
        raise CollectiveError(
            f"The ranks of the group do not divide the {name} of {what}.",
            saw=f"a tensor of {list(tensor.shape)}, {n} ranks",
            hint="split sizes say which rank gets how much",
        )
    if splits and (len(splits) != n or sum(splits) != rows):
        raise CollectiveError(
            f"The split sizes of the {name} of {what} are not those of its first dim.",
            saw=f"{list(splits)} for a tensor of {list(tensor.shape)}, {n} ranks",
        )
