"""Samples of `lowering/prims.py`."""

from __future__ import annotations

import torch

from check import Sample, sample
from torch_pjrt.lowering import prims as rules
from torch_pjrt.overloads import prims

X = torch.tensor([[0.1, 0.3, 0.6], [0.2, 0.5, 0.9]])
Y = torch.tensor([[0.4, 0.2, 0.9], [1.3, 2.0, 0.1]])
INTS = torch.tensor([[7, -3, 2], [9, 4, -8]])
DIVISORS = torch.tensor([[2, 2, 3], [-4, 1, 3]])
UNARY = [
    name for name in rules.SAME_NAME if len(getattr(prims, name).default._schema.arguments) == 1
]
BINARY = [name for name in rules.SAME_NAME if name not in UNARY]
OF_INTS = {"gcd", "bitwise_and", "bitwise_or", "bitwise_xor", "shift_left"}
CPU = {"device": torch.device("cpu"), "requires_grad": False}


def _unary(name: str) -> Sample:
    x = INTS if name == "bitwise_not" else X + (1 if name == "acosh" else 0)
    return sample(getattr(prims, name).default, x)


def _binary(name: str) -> Sample:
    x, y = (INTS, DIVISORS) if name in OF_INTS else (X, Y)
    return sample(getattr(prims, name).default, x, y)


SAMPLES: list[Sample] = [
    *(_unary(name) for name in UNARY),
    *(_binary(name) for name in [*BINARY, *rules.SAME_NAME_OF_TENSORS]),
    *(
        sample(op, X)
        for op in (
            prims.bessel_i0.default,
            prims.bessel_i0e.default,
            prims.bessel_i1.default,
            prims.bessel_i1e.default,
            prims.erf_inv.default,
            prims.ndtri.default,
            prims.spherical_bessel_j0.default,
            prims.cbrt.default,
            prims.isfinite.default,
            prims.clone.default,
        )
    ),
    sample(prims.conj_physical.default, torch.tensor([1j, 2 - 1j])),
    sample(prims.isfinite.default, torch.tensor([float("inf"), float("nan"), 1.0])),
    sample(prims.pow.default, X, Y),
    sample(prims.shift_left.default, INTS, DIVISORS.abs()),
    sample(prims.shift_right_arithmetic.default, INTS, DIVISORS.abs()),
    sample(prims.where.default, X > 0.4, X, Y),
    sample(prims.zeta.default, X + 1, Y),
    sample(prims.div.default, X, Y),
    sample(prims.div.default, INTS, DIVISORS),
    sample(prims.fill.default, X, 3),
    sample(prims.full.default, [2, 3], 1.5, dtype=torch.float64, **CPU),
    sample(prims.full_like.default, X, 2, dtype=torch.int64, **CPU),
    sample(prims.scalar_tensor.default, 2.5, dtype=torch.float64, device=CPU["device"]),
    sample(prims.iota.default, 5, start=2, step=3, dtype=torch.int64, **CPU),
    sample(prims.iota.default, 0, start=2, step=-1, dtype=torch.int32, **CPU),
    sample(prims.rev.default, X, [0, 1]),
    sample(prims.cat.default, [X, Y], 1),
    sample(prims.reshape.default, X, [3, 2]),
    sample(prims.amax.default, X, [1]),
    sample(prims.amin.default, X, [0, 1]),
    sample(prims.sum.default, X, [1]),
    sample(prims.sum.default, INTS, [0, 1]),
    sample(prims.prod.default, X, [0]),
    sample(prims.var.default, X, [1], 0),
]
