"""What `torch.empty` holds where PyTorch is to be deterministic: NaN, or the largest integer, as on CPU."""

from __future__ import annotations

import torch

# `torch.utils.deterministic.fill_uninitialized_memory`
_is_wanted = torch._C._get_deterministic_fill_uninitialized_memory
_is_deterministic = torch._C._get_deterministic_algorithms


def fills() -> bool:
    """Whether `torch.use_deterministic_algorithms` and that option are on."""
    return _is_deterministic() and _is_wanted()


def filled(tensor: torch.Tensor) -> torch.Tensor:
    """The new tensor, filled."""
    return tensor.fill_(_number(tensor.dtype))


def fill_from(tensor: torch.Tensor, held: int) -> None:
    """Fill what lies behind the first `held` bytes of its storage, of which `resize_` has made it a part."""
    whole = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    first = held // tensor.dtype.itemsize
    if whole > first:
        flat = tensor.detach().as_strided((whole - first,), (1,), first)
        flat.fill_(_number(tensor.dtype))


def _number(dtype: torch.dtype) -> float | int | bool:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return True if dtype == torch.bool else torch.iinfo(dtype).max
