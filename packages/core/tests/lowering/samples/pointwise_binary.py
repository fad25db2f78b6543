"""Samples of `lowering/pointwise/binary.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

X = torch.tensor([[-7.0, -1.5, 0.0, 0.3], [2.0, 3.5, 7.0, 11.0]])
Y = torch.tensor([2.0, -0.7, 3.0, 0.25])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])
OTHER = torch.tensor([1.0, math.inf, 2.0, math.nan, 0.0, -math.inf])
INTS = torch.tensor([[-7, -1, 0, 3], [5, 8, 12, 100]])
DIVISORS = torch.tensor([2, -3, 7, 4])
COMPLEX = torch.tensor([1 + 2j, -0.5j, 3 + 0j, -1 + 1j])
BOOLS = torch.tensor([True, False, True, False])
BYTES = INTS.abs().to(torch.uint8)

FLOATS = [
    (X, Y),
    (X, torch.tensor(2.0)),
    (torch.tensor(2.0), torch.tensor(0.5)),
    (X.bfloat16(), Y.bfloat16()),
    (X.half(), Y.half()),
    (X.double(), Y.double()),
    (SPECIAL, OTHER),
    (torch.zeros(0, 4), Y),
]
MIXED = [
    (X.bfloat16(), Y),
    (X.half(), Y.bfloat16()),
    (X, DIVISORS),
    (INTS, Y.half()),
    (INTS, torch.tensor(1.5, dtype=torch.float64)),
    (X.half(), torch.tensor(1.5, dtype=torch.float64)),
    (X, Y.double()),
]
EXACT = [
    (INTS, DIVISORS),
    (INTS.int(), DIVISORS),
    (BYTES, torch.tensor([2, 3, 7, 4], dtype=torch.uint8)),
    (BYTES, torch.tensor([2, 3, 7, 4], dtype=torch.int8)),
    (INTS.to(torch.int16), torch.tensor(3)),
]
LOGICAL = [(BOOLS, ~BOOLS), (BOOLS, DIVISORS), (BOOLS, Y)]
WITH_COMPLEX = [(COMPLEX, Y), (COMPLEX, COMPLEX.flip(0)), (COMPLEX, DIVISORS)]
NUMBERS = [
    (X, 2),
    (X, -0.7),
    (X.bfloat16(), 0.1),
    (X.half(), 3),
    (X.double(), 0.1),
    (INTS, 3),
    (INTS, -3),
    (INTS, 2.5),
    (BYTES, 3),
    (torch.tensor(5), 2),
]

ARITHMETIC = [*FLOATS, *MIXED, *EXACT, *WITH_COMPLEX]
SUMS = [
    *(
        sample(op, x, y)
        for op in (aten.add.Tensor, aten.mul.Tensor)
        for x, y in [*ARITHMETIC, *LOGICAL]
    ),
    *(
        sample(op, x, y)
        for op in (aten.sub.Tensor, aten.div.Tensor, aten.rsub.Tensor)
        for x, y in ARITHMETIC
    ),
    *(sample(aten.div.Tensor, x, y) for x, y in [(BOOLS, DIVISORS), (INTS, torch.tensor(0))]),
    *(
        sample(op, x, y)
        for op in (
            aten.add.Scalar,
            aten.sub.Scalar,
            aten.mul.Scalar,
            aten.div.Scalar,
            aten.rsub.Scalar,
        )
        for x, y in [*NUMBERS, (X, 1j), (COMPLEX, 2.5), (BYTES, -1)]
        if not (op is aten.div.Scalar and y == -1)
    ),
    *(sample(aten.add.Tensor, x, y) for x, y in NUMBERS),
    sample(aten.add.Scalar, BOOLS, True),
    sample(aten.add.Scalar, BOOLS, 2),
    sample(aten.mul.Scalar, BYTES, 300),
    sample(aten.mul.Tensor, BOOLS, 2.5),
    *(sample(aten.mul.Tensor, SPECIAL > 0, x) for x in (OTHER, OTHER.half(), OTHER.double())),
    sample(aten.mul.Tensor, OTHER, torch.tensor(False)),
    *(
        sample(op, x, y, alpha=alpha)
        for op in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor)
        for x, y, alpha in [
            (X, Y, 0.1),
            (X.bfloat16(), Y.bfloat16(), 0.1),
            (INTS, DIVISORS, 3),
            (X, DIVISORS, -2),
            (COMPLEX, Y, 2j),
        ]
    ),
    sample(aten.add.Tensor, BOOLS, ~BOOLS, alpha=True),
    sample(aten.add.Scalar, X, 2, 3),
    sample(aten.sub.Scalar, INTS, 2, 3),
    sample(aten.rsub.Scalar, INTS, 2, 3),
]

DIVIDED = [
    *(
        sample(aten.div.Tensor_mode, x, y, rounding_mode=mode)
        for x, y in [*FLOATS, *MIXED, *EXACT]
        for mode in (None, "trunc", "floor")
    ),
    *(
        sample(aten.div.Scalar_mode, x, y, rounding_mode=mode)
        for x, y in NUMBERS
        for mode in (None, "trunc", "floor")
    ),
    sample(
        aten.div.Tensor_mode,
        torch.tensor([1.0, -1.0, 0.0]),
        torch.tensor(0.0),
        rounding_mode="floor",
    ),
    sample(aten.div.Scalar_mode, torch.tensor([0.6, 1.0, -0.3]), 0.1, rounding_mode="floor"),
    *(sample(aten.floor_divide.default, x, y) for x, y in [*FLOATS, *EXACT]),
    *(sample(aten.floor_divide.Scalar, x, y) for x, y in NUMBERS),
    *(
        sample(op, x, y)
        for op in (aten.fmod.Tensor, aten.remainder.Tensor)
        for x, y in [*FLOATS, *MIXED, *EXACT]
    ),
    *(sample(op, x, y) for op in (aten.fmod.Scalar, aten.remainder.Scalar) for x, y in NUMBERS),
    *(
        sample(aten.remainder.Scalar_Tensor, x, y)
        for x, y in [(5, DIVISORS), (5.5, Y), (-5, Y.half())]
    ),
]

EXTREMES = (aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default)
ROUNDED = (aten.hypot.default, aten.logaddexp.default, aten.logaddexp2.default)
# The least number has no opposite.
LEAST = [
    torch.tensor([torch.iinfo(dtype).min, 4, 0], dtype=dtype)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
]

OTHERS = [
    *(sample(op, x, y) for op in EXTREMES for x, y in [*FLOATS, *MIXED, *EXACT, LOGICAL[0]]),
    *(sample(op, x, y) for op in ROUNDED for x, y in [*FLOATS, (X, Y.double())]),
    sample(aten.logaddexp.default, COMPLEX, COMPLEX.flip(0)),
    sample(aten.hypot.default, torch.tensor([1e30, 0.0]), torch.tensor([1e30, 0.0])),
    *(
        sample(op, x, y)
        for op in (aten.atan2.default, aten.copysign.Tensor)
        for x, y in [*FLOATS, *MIXED, *EXACT]
    ),
    *(sample(aten.copysign.Scalar, x, y) for x in (X, INTS) for y in (-2.0, 0.0, -0.0, 1)),
    *(
        sample(packet_op, x, y)
        for packet_op in (aten.xlogy.Tensor, aten.special_xlog1py.default)
        for x, y in [*FLOATS, (X, DIVISORS), (INTS, DIVISORS)]
    ),
    sample(aten.xlogy.Scalar_Self, 2, Y),
    sample(aten.xlogy.Scalar_Other, X, 3),
    sample(aten.xlogy.Scalar_Self, 0, OTHER),
    sample(aten.xlogy.Scalar_Other, INTS, 3),
    sample(aten.special_xlog1py.self_scalar, 2, Y),
    sample(aten.special_xlog1py.other_scalar, X, 3),
    *(sample(op, x, y) for op in (aten.gcd.default, aten.lcm.default) for x, y in EXACT),
    *(
        sample(op, x, torch.tensor([[6], [0], [int(x.min())]], dtype=x.dtype))
        for op in (aten.gcd.default, aten.lcm.default)
        for x in LEAST
    ),
    *(
        sample(aten.heaviside.default, x, y)
        for x, y in [(X, Y), (SPECIAL, OTHER), (INTS, DIVISORS)]
    ),
    *(
        sample(aten.nextafter.default, x, y)
        for x, y in [(X, Y), (X.double(), Y.double()), (SPECIAL, OTHER)]
    ),
    *(
        sample(aten.ldexp.Tensor, x, y)
        for x, y in [(X, DIVISORS), (INTS, DIVISORS), (X, Y), (X.half(), DIVISORS), (INTS, Y)]
    ),
]

POSITIVE = X.abs() + 0.1
EXPONENTS = [0, 1, 2, 3, -1, -2, 0.5, -0.5, 4, 1.7, -3, 2.0]
POWERS = [
    *(
        sample(aten.pow.Tensor_Scalar, x, n)
        for x in (POSITIVE, POSITIVE.bfloat16(), POSITIVE.half(), POSITIVE.double(), COMPLEX)
        for n in EXPONENTS
    ),
    *(sample(aten.pow.Tensor_Scalar, X, n) for n in EXPONENTS),
    *(sample(aten.pow.Tensor_Scalar, INTS, n) for n in (0, 1, 2, 3, 5, 2.0, 0.5)),
    sample(aten.pow.Tensor_Scalar, BYTES, 2),
    *(sample(aten.pow.Tensor_Scalar, BOOLS, n) for n in (True, False, 2)),
    sample(aten.pow.Tensor_Scalar, X, 1j),
    sample(aten.pow.Tensor_Scalar, SPECIAL, 2),
    *(
        sample(aten.pow.Tensor_Tensor, x, y)
        for x, y in [
            (POSITIVE, Y),
            (X, DIVISORS),
            (INTS, DIVISORS.abs()),
            (INTS, DIVISORS),
            (COMPLEX, Y),
            (SPECIAL, OTHER),
            (POSITIVE.bfloat16(), Y.bfloat16()),
            (POSITIVE.half(), Y),
            (BYTES, torch.tensor([2, 3, 7, 4], dtype=torch.uint8)),
            (torch.tensor(2), torch.tensor(10)),
        ]
    ),
    *(
        sample(aten.pow.Scalar, x, y)
        for x, y in [
            (2, Y),
            (2.5, Y),
            (2, DIVISORS.abs()),
            (1, DIVISORS),
            (0, DIVISORS.abs()),
            (0.5, DIVISORS),
            (2, COMPLEX),
            (10, Y.half()),
        ]
    ),
]

SAMPLES: list[Sample] = [*SUMS, *DIVIDED, *OTHERS, *POWERS]
