"""GGUF's K-quants as layers of ours: blocks of 256 numbers, whose groups have scales of few bits.

    Q2_K    groups of 16, two bits, a scale and a least value of four bits each     int4 with zeros
    Q3_K    groups of 16, three bits, a scale of six bits                           int4
    Q4_K    groups of 32, four bits, a scale and a least value of six bits each     int4 with zeros
    Q6_K    groups of 16, six bits, a scale of eight bits                           int8

Q3_K and Q6_K are exact. A least value becomes a zero, `least / scale`, so numbers of Q2_K and Q4_K are those
of the format but for the rounding of float32. Q5_K has no counterpart: five bits with a least value.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_pjrt_quant import packing
from torch_pjrt_quant.linear import Int4Linear, Int8Linear, QuantizedLinear

Sizes = tuple[int, int]


def _parts(raw: Tensor, sizes: Sizes, lengths: Sequence[int]) -> list[Tensor]:
    """The fields of all blocks: (rows * blocks of a row, length) bytes each."""
    return list(raw.reshape(-1, sum(lengths)).split(list(lengths), 1))


def _float(field: Tensor) -> Tensor:
    return field.contiguous().view(torch.float16).float()


def _bits(field: Tensor, width: int, n_bytes: int) -> Tensor:
    """Numbers of 2 or 4 bits, 256 (or fewer) a block: runs of `n_bytes` bytes hold the lowest bits first."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device="cpu")[:, None]
    runs = field.reshape(len(field), -1, 1, n_bytes) >> shifts
    return (runs & (2**width - 1)).flatten(1)


def q2_k(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    both, numbers, d, least = _parts(raw, sizes, (16, 64, 2, 2))
    scale, low = _float(d) * (both & 15), _float(least) * (both >> 4)
    return _with_least(_bits(numbers, 2, 32), scale, low, sizes)


def q3_k(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    high, numbers, packed, d = _parts(raw, sizes, (32, 64, 12, 2))
    factors = _bits(packed[:, :8], 4, 8) | (_bits(packed[:, 8:], 2, 4) << 4)
    scale = _float(d) * (factors.float() - 32)
    third = (high[:, None] >> torch.arange(8, dtype=torch.uint8, device="cpu")[:, None]) & 1
    # From -4 to 3, and 8 stands for 0.
    whole = _bits(numbers, 2, 32) + (third.flatten(1) << 2) + 4
    scale = scale.reshape(sizes[1], -1)
    return Int4Linear(*sizes, (packing.pack(whole.reshape(sizes[1], -1), 16), scale, None))


def q4_k(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    d, least, packed, numbers = _parts(raw, sizes, (2, 2, 12, 128))
    a, b, c = packed.split(4, 1)
    factors = torch.cat([a & 63, (c & 15) | ((a >> 6) << 4)], 1)
    lows = torch.cat([b & 63, (c >> 4) | ((b >> 6) << 4)], 1)
    return _with_least(_bits(numbers, 4, 32), _float(d) * factors, _float(least) * lows, sizes)


def q6_k(raw: Tensor, sizes: Sizes) -> QuantizedLinear:
    low, high, factors, d = _parts(raw, sizes, (128, 64, 16, 2))
    numbers = _bits(low, 4, 64) | (_bits(high, 2, 32) << 4)
    scale = _float(d) * factors.contiguous().view(torch.int8).float()
    weight = (numbers.to(torch.int8) - 32).reshape(sizes[1], -1)
    return Int8Linear(*sizes, (weight, scale.reshape(sizes[1], -1)))


def _with_least(numbers: Tensor, scale: Tensor, low: Tensor, sizes: Sizes) -> QuantizedLinear:
    """`numbers * scale - low` as `(numbers - zero) * scale`; without a scale, a group is `-low` alone."""
    n_rows = sizes[1]
    flat = scale == 0
    groups = numbers.reshape(*scale.shape, -1)
    numbers = torch.where(flat[..., None], 0, groups).reshape(n_rows, -1)
    zero = torch.where(flat, 1.0, low / torch.where(flat, 1.0, scale)).reshape(n_rows, -1)
    scale = torch.where(flat, low, scale).reshape(n_rows, -1)
    return Int4Linear(*sizes, (packing.pack(numbers, sizes[0] // scale.shape[1]), scale, zero))
