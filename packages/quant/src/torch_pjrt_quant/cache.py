"""Keys and values of a cache in 8 bits: a scale for each token and head.

What has been written never changes when tokens come after it, so pages of a cache hold numbers beside their
scales, and each is written once. A token's scale is a factor of its scores (keys) and of its weight (values),
so attention may multiply numbers as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-12
#   dtype, the largest number that is used
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def to_cache(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Keys or values (*, heads, width) as numbers of `dtype` and scales (float32, *, heads).

    dtype    int8, float8_e4m3fn or float8_e5m2. Raises `ValueError` for another.
    """
    largest = LARGEST.get(dtype)
    if largest is None:
        raise ValueError(f"a cache of {dtype}: it takes {', '.join(map(str, LARGEST))}")
    wide = x.detach().float()
    scale = (wide.abs().amax(-1) / largest).clamp(min=LEAST)
    numbers = wide / scale[..., None]
    if dtype is torch.int8:
        numbers = numbers.round()
    return numbers.clamp(-largest, largest).to(dtype), scale


def from_cache(numbers: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """About what `to_cache` was given, in `dtype`: (*, heads, width) of numbers, (*, heads) of scales."""
    return (numbers.float() * scale[..., None]).to(dtype)
