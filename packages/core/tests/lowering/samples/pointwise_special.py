"""Samples of `lowering/pointwise/special.py`."""

from __future__ import annotations

import math

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

ANY = torch.tensor([-3.5, -2.2, -0.6, -0.0, 0.0, 0.3, 1.0, 2.5, 9.0])
UNIT = torch.tensor([0.0, 0.05, 0.4, 0.5, 0.93, 1.0])
POSITIVE = torch.tensor([0.2, 1.0, 1.7, 4.0, 12.0])
LARGER = torch.tensor([1.5, 2.0, 3.3, 6.0, 2.0])
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf])
INTS = torch.tensor([1, 2, 5])
HUGE = torch.tensor([1e10, 1e30, math.inf, math.nan])


def _dtypes(*tensors: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    return [tuple(x.to(dtype) for x in tensors) for dtype in dtypes]


UNARY = [
    (aten.digamma.default, ANY),
    (aten.erf.default, ANY),
    (aten.erfc.default, ANY),
    (aten.erfinv.default, 2 * UNIT - 1),
    (aten.i0.default, ANY),
    (aten.lgamma.default, ANY),
    (aten.special_entr.default, ANY),
    (aten.special_i0e.default, ANY),
    (aten.special_i1.default, ANY),
    (aten.special_i1e.default, ANY),
    (aten.special_log_ndtr.default, ANY),
    (aten.special_modified_bessel_i0.default, ANY),
    (aten.special_modified_bessel_i1.default, ANY),
    (aten.special_ndtri.default, UNIT),
    (aten.special_spherical_bessel_j0.default, ANY),
    (aten.logit.default, UNIT),
]
FULL_ONLY = {
    aten.special_i0e.default,
    aten.special_i1.default,
    aten.special_i1e.default,
    aten.special_log_ndtr.default,
    aten.special_modified_bessel_i0.default,
    aten.special_modified_bessel_i1.default,
    aten.special_ndtri.default,
    aten.special_spherical_bessel_j0.default,
}
BINARY = (aten.igamma.default, aten.igammac.default)

SAMPLES: list[Sample] = [
    *(sample(op, y) for op, x in UNARY for (y,) in _dtypes(x)[: 2 if op in FULL_ONLY else 4]),
    *(sample(op, INTS) for op, _ in UNARY),
    *(sample(op, SPECIAL) for op, _ in UNARY[:7]),
    *(sample(op, a, x) for op in BINARY for a, x in _dtypes(POSITIVE, LARGER)[:2]),
    sample(aten.igamma.default, POSITIVE, torch.tensor([[0.0], [2.0]])),
    *(sample(op, HUGE[:, None], HUGE) for op in BINARY),
    sample(aten.special_zeta.default, HUGE, torch.tensor([[-8388607.5], [1.0], [0.5]])),
    *(
        sample(op, torch.tensor([2e3, 2e4, 2e4]), torch.tensor([2.01e3, 1.99e4, 2.01e4]))
        for op in BINARY
    ),
    *(sample(aten.special_zeta.default, x, q) for x, q in _dtypes(LARGER, POSITIVE)[:2]),
    sample(aten.special_zeta.default, torch.tensor([[1.0], [0.5], [2.0], [2.5], [3.0]]), ANY),
    sample(aten.polygamma.default, 2, torch.tensor([-4.3, -0.5, 0.5])),
    sample(aten.polygamma.default, 1, torch.tensor(-1.5)),
    sample(aten.polygamma.default, 4, torch.tensor([-8.5, -3.5, -20.25])),  # terms cancel
    sample(aten.special_zeta.other_scalar, LARGER, 2),
    sample(aten.special_zeta.self_scalar, 2.5, POSITIVE),
    *(sample(aten.polygamma.default, n, x) for n in (0, 1, 2, 4) for (x,) in _dtypes(POSITIVE)),
    sample(aten.polygamma.default, 1, INTS),
    *(sample(aten.logit.default, x, 0.1) for (x,) in _dtypes(UNIT)),
    *(
        sample(aten.logit_backward.default, g, x, eps)
        for g, x in _dtypes(ANY[:6], UNIT)
        for eps in (None, 0.1)
    ),
]
