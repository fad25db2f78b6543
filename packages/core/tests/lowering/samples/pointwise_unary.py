"""Samples of `lowering/pointwise/unary.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.lowering.pointwise import unary
from torch_pjrt.overloads import aten

ANY = torch.tensor([-3.5, -2.5, -1.0, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 12.0])
POSITIVE = torch.tensor([0.0, 1e-3, 0.3, 1.0, 1.5, 2.0, 8.0, 1000.0])
UNIT = torch.tensor([-1.0, -0.7, -0.0, 0.1, 0.5, 1.0])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf])
INTS = torch.tensor([-3, -1, 0, 1, 2, 5])
COMPLEX = torch.tensor([0.5 + 0.3j, -1.2 + 0.4j, 2.0 - 1.5j, 0.1j + 0.2])
ZERO_DIM = torch.tensor(0.5)
EMPTY = torch.zeros(0, 2)

REAL_ONLY = {
    aten.ceil.default,
    aten.floor.default,
    aten.round.default,
    aten.trunc.default,
    aten.sign.default,
    aten.signbit.default,
    aten.relu.default,
    aten.isneginf.default,
    aten.isposinf.default,
    aten.deg2rad.default,
    aten.rad2deg.default,
    aten.frac.default,
}
NO_BOOL = {aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default}
NO_BOOL |= {aten.abs.default, aten.neg.default, aten.relu.default}
FLOAT_ONLY = {aten.frac.default}
POSITIVE_ONLY = {aten.log, aten.log2, aten.log10, aten.sqrt, aten.rsqrt, aten.log1p}
UNIT_ONLY = {aten.acos, aten.asin, aten.atanh}


def _typical(op: torch._ops.OpOverload) -> torch.Tensor:
    if op.overloadpacket in POSITIVE_ONLY:
        return POSITIVE
    return UNIT if op.overloadpacket in UNIT_ONLY else ANY


def _of(op: torch._ops.OpOverload) -> list[Sample]:
    x = _typical(op)
    inputs = [x, x.double(), x.bfloat16(), x.half(), SPECIAL, ZERO_DIM, EMPTY]
    if op not in FLOAT_ONLY:
        inputs += [INTS, INTS.abs().to(torch.uint8)]
        inputs += [] if op in NO_BOOL else [INTS > 0]
    inputs += [] if op in REAL_ONLY else [COMPLEX, COMPLEX.to(torch.complex128)]
    return [sample(op, x) for x in inputs]


ROWS = [*unary.EXACT_TOO, *unary.ONE_INSTRUCTION, *unary.SEVERAL_INSTRUCTIONS]

SAMPLES: list[Sample] = [
    *(row for op, _ in ROWS for row in _of(op)),
    sample(aten.sgn.default, torch.tensor([0j, 3 + 4j])),
    sample(aten.isinf.default, torch.tensor([complex(1, math.inf), complex(math.nan, 1), 1j])),
    sample(aten.isnan.default, torch.tensor([complex(1, math.inf), complex(math.nan, 1), 1j])),
    *(sample(aten.round.decimals, ANY * 1.2345, decimals=d) for d in (0, 2, -1)),
    sample(aten.round.decimals, ANY.double() * 123.45, decimals=-2),
    sample(aten.nan_to_num.default, SPECIAL),
    sample(aten.nan_to_num.default, SPECIAL.bfloat16()),
    sample(aten.nan_to_num.default, SPECIAL.double(), 1.0, 2.0, -3.0),
    sample(aten.nan_to_num.default, SPECIAL, 0.0, None, -1.5),
    sample(aten.nan_to_num.default, INTS),
    sample(aten.nan_to_num.default, torch.tensor([complex(math.nan, math.inf), 1j])),
    *(sample(aten.frexp.Tensor, x) for x in (ANY, ANY.double(), ANY.half())),
]
