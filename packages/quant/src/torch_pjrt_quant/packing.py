"""Weights as few bits: what each format's numbers mean, made and read with PyTorch alone.

    int8      `weight[row, column] * scale[row]`, or `scale[row, group]`
    int4      `(number[row, column] - zero[row, group]) * scale[row, group]`, numbers from 0 to 15;
              without zeros (symmetric) 8 stands for 0
    nf4       `NF4[number[row, column]] * scale[row, group]`: 16 values at quantiles of a normal distribution
              (Dettmers et al., QLoRA, 2023, appendix E)
    float8    `weight[row, column] * scale[row]`, float8_e4m3fn

A zero that is a whole number is one byte (uint8); others, which some files have, are float32.

A group is some neighbouring columns. Numbers of four bits are packed by twos: in a group of 2h columns, byte
j of the group holds column j in its low half and column h + j in its high half.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The 16 values of NF4, as the paper's appendix gives them.
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
FLOAT8_MAX = 448.0


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers (int8, as the weight) and scales (float32, one a row), symmetric, rounded to nearest."""
    wide = weight.detach().float()
    scale = (wide.abs().amax(1) / 127).clamp(min=1e-12)
    return (wide / scale[:, None]).round().clamp(-127, 127).to(torch.int8), scale


def to_float8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The same in float8_e4m3fn."""
    wide = weight.detach().float()
    scale = (wide.abs().amax(1) / FLOAT8_MAX).clamp(min=1e-12)
    return (wide / scale[:, None]).to(torch.float8_e4m3fn), scale


def to_int4(
    weight: Tensor, group_size: int, *, symmetric: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Packed numbers (rows x columns / 2), scales and zeros (rows x groups); no zeros if symmetric."""
    groups = _groups(weight, group_size)
    if symmetric:
        scale = (groups.abs().amax(-1) / 7).clamp(min=1e-12)
        zero = torch.full_like(scale, 8)
    else:
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((high - low) / 15).clamp(min=1e-12)
        zero = (-low / scale).round().clamp(0, 15)
    numbers = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    return pack(numbers.flatten(1), group_size), scale, None if symmetric else zero.to(torch.uint8)


def to_nf4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Packed numbers and scales, each the nearest of the 16 values."""
    groups = _groups(weight, group_size)
    scale = groups.abs().amax(-1).clamp(min=1e-12)
    values = torch.tensor(NF4, device=weight.device)
    between = (values[1:] + values[:-1]) / 2
    numbers = torch.bucketize((groups / scale[..., None]).contiguous(), between)
    return pack(numbers.flatten(1), group_size), scale


def pack(numbers: Tensor, group_size: int) -> Tensor:
    """Numbers from 0 to 15 (any dtype, rows x columns), packed by twos (uint8, rows x columns / 2)."""
    rows, columns = numbers.shape
    halves = numbers.to(torch.uint8).view(rows, columns // group_size, 2, group_size // 2)
    low, high = halves.unbind(2)
    return (low | (high << 4)).flatten(1)


def unpack(packed: Tensor, group_size: int) -> Tensor:
    """The numbers again (uint8, rows x columns)."""
    groups = packed.view(len(packed), -1, group_size // 2)
    return torch.cat([groups & 15, groups >> 4], -1).flatten(1)


def from_int8(weight: Tensor, scale: Tensor) -> Tensor:
    """The weight in float32; of float8 too. Scales are one a row, or rows x groups."""
    groups = weight.float().view(len(weight), scale.numel() // len(scale), -1)
    return (groups * scale.float().view(*groups.shape[:2], 1)).flatten(1)


def from_int4(packed: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """The weight in float32."""
    size = 2 * packed.shape[1] // scale.shape[1]
    numbers = unpack(packed, size).view(*scale.shape, size).float()
    zeros = 8.0 if zero is None else zero.float()[..., None]
    return ((numbers - zeros) * scale.float()[..., None]).flatten(1)


def from_nf4(packed: Tensor, scale: Tensor) -> Tensor:
    """The weight in float32."""
    size = 2 * packed.shape[1] // scale.shape[1]
    values = torch.tensor(NF4, device=packed.device)[unpack(packed, size).long()]
    return (values.view(*scale.shape, size) * scale.float()[..., None]).flatten(1)


def from_middle(zero: Tensor) -> Tensor:
    """Zeros from -8 to 7, as some write them, for numbers from 0 to 15."""
    if zero.is_floating_point():
        return zero.float() + 8
    return (zero.to(torch.int16) + 8).to(torch.uint8)


def check_groups(columns: int, group_size: int) -> None:
    """Raises `ValueError` where groups of that size cannot be those of a row."""
    if group_size <= 0 or group_size % 2 or columns % group_size:
        raise ValueError(
            f"groups of {group_size} do not divide {columns} columns into groups of an even size"
        )


def _groups(weight: Tensor, group_size: int) -> Tensor:
    rows, columns = weight.shape
    check_groups(columns, group_size)
    return weight.detach().float().view(rows, columns // group_size, group_size)
