"""Samples for lowering/matmul.py.

Products with a dtype of their own have no CPU kernel: here they get one, the product of wider factors.
"""

from __future__ import annotations

from typing import Any

import torch

from check import Sample, sample
from torch_pjrt.overloads import aten

seed = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=seed, dtype=torch.float64).to(dtype)


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(-9, 9, shape, generator=seed).to(dtype)


nan = torch.full((3, 5), torch.nan)
cpu = torch.library.Library("aten", "IMPL")


def _product(a: Any, b: Any, out_dtype: torch.dtype) -> torch.Tensor:
    return (a.double() @ b.double()).to(out_dtype)


def _sum(x: Any, a: Any, b: Any, out_dtype: torch.dtype, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = alpha * (a.double() @ b.double())
    return (product if beta == 0 else beta * x.double() + product).to(out_dtype)


for name, kernel in (("mm", _product), ("bmm", _product), ("addmm", _sum), ("baddbmm", _sum)):
    cpu.impl(f"{name}.dtype", kernel, "CPU")

NARROW_AND_RESULT = (
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float32, torch.float32),
)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64)

SAMPLES: list[Sample] = [
    *[sample(aten.mm.default, normal(3, 4, dtype=d), normal(4, 5, dtype=d)) for d in DTYPES],
    sample(aten.mm.default, whole(3, 4), whole(4, 5)),
    sample(aten.mm.default, whole(3, 4, dtype=torch.uint8), whole(4, 5, dtype=torch.uint8)),
    sample(aten.mm.default, normal(3, 0), normal(0, 5)),
    sample(aten.mm.default, normal(0, 4), normal(4, 5)),
    # Many terms of one size: a sum kept in 16 bits would stop growing at 256 (bfloat16).
    sample(
        aten.mm.default,
        torch.ones(2, 3000, dtype=torch.bfloat16),
        torch.ones(3000, 2, dtype=torch.bfloat16),
    ),
    sample(
        aten.mm.default,
        torch.ones(2, 3000, dtype=torch.float16),
        torch.ones(3000, 2, dtype=torch.float16),
    ),
    *[
        row
        for dtype, out in NARROW_AND_RESULT
        for a, b in ((normal(2, 3, 4, dtype=dtype), normal(2, 4, 5, dtype=dtype)),)
        for row in (
            sample(aten.mm.dtype, a[0], b[0], out),
            sample(aten.bmm.dtype, a, b, out),
            sample(aten.addmm.dtype, normal(5, dtype=out), a[0], b[0], out, beta=0.5, alpha=-2),
            sample(aten.baddbmm.dtype, normal(2, 3, 5, dtype=dtype), a, b, out, beta=2, alpha=3),
        )
    ],
    sample(aten.addmm.dtype, nan, normal(3, 4), normal(4, 5), torch.float32, beta=0),
    sample(
        aten._int_mm.default,
        whole(32, 16, dtype=torch.int8) * 13,
        whole(16, 8, dtype=torch.int8) * 13,
    ),
    *[sample(aten.bmm.default, normal(2, 3, 4, dtype=d), normal(2, 4, 5, dtype=d)) for d in DTYPES],
    sample(aten.bmm.default, whole(2, 3, 4), whole(2, 4, 5)),
    sample(aten.bmm.default, normal(0, 3, 4), normal(0, 4, 5)),
    *[
        sample(
            aten.addmm.default,
            normal(5, dtype=d),
            normal(3, 4, dtype=d),
            normal(4, 5, dtype=d),
        )
        for d in DTYPES
    ],
    sample(aten.addmm.default, normal(3, 5), normal(3, 4), normal(4, 5), beta=0.5, alpha=-2),
    sample(aten.addmm.default, normal(3, 1), normal(3, 4), normal(4, 5), beta=2),
    sample(aten.addmm.default, normal(), normal(3, 4), normal(4, 5)),
    sample(aten.addmm.default, nan, normal(3, 4), normal(4, 5), beta=0),
    sample(aten.addmm.default, normal(3, 5), normal(3, 0), normal(0, 5), beta=2),
    sample(aten.addmm.default, whole(3, 5), whole(3, 4), whole(4, 5), beta=2, alpha=3),
    sample(aten._addmm_activation.default, normal(5), normal(3, 4), normal(4, 5)),
    sample(
        aten._addmm_activation.default,
        normal(5),
        normal(3, 4),
        normal(4, 5),
        beta=2,
        alpha=3,
    ),
    sample(
        aten._addmm_activation.default,
        normal(5),
        normal(3, 4),
        normal(4, 5),
        use_gelu=True,
    ),
    sample(
        aten.baddbmm.default,
        normal(2, 3, 5),
        normal(2, 3, 4),
        normal(2, 4, 5),
        beta=0.5,
        alpha=2,
    ),
    sample(aten.baddbmm.default, normal(1, 1, 5), normal(2, 3, 4), normal(2, 4, 5)),
    sample(
        aten.baddbmm.default,
        normal(2, 3, 5, dtype=torch.bfloat16),
        normal(2, 3, 4, dtype=torch.bfloat16),
        normal(2, 4, 5, dtype=torch.bfloat16),
    ),
    sample(aten.baddbmm.default, nan, normal(2, 3, 4), normal(2, 4, 5), beta=0),
    sample(aten.baddbmm.default, whole(2, 3, 5), whole(2, 3, 4), whole(2, 4, 5), beta=2),
    sample(aten.addbmm.default, normal(3, 5), normal(2, 3, 4), normal(2, 4, 5)),
    sample(
        aten.addbmm.default,
        normal(3, 5),
        normal(2, 3, 4),
        normal(2, 4, 5),
        beta=2,
        alpha=0.5,
    ),
    sample(aten.addbmm.default, whole(3, 5), whole(2, 3, 4), whole(2, 4, 5)),
    sample(aten.addmv.default, normal(3), normal(3, 4), normal(4), beta=0.5, alpha=2),
    sample(aten.addmv.default, normal(), normal(3, 4), normal(4)),
    sample(aten.addmv.default, torch.full((3,), torch.nan), normal(3, 4), normal(4), beta=0),
    sample(aten.addmv.default, whole(3), whole(3, 4), whole(4), beta=3),
    sample(aten.mv.default, normal(3, 4), normal(4)),
    sample(
        aten.mv.default,
        normal(3, 4, dtype=torch.bfloat16),
        normal(4, dtype=torch.bfloat16),
    ),
    sample(aten.mv.default, normal(3, 0), normal(0)),
    sample(aten.dot.default, normal(4), normal(4)),
    sample(aten.dot.default, whole(4), whole(4)),
    sample(aten.dot.default, normal(0), normal(0)),
    sample(
        aten.dot.default,
        normal(4, dtype=torch.complex64),
        normal(4, dtype=torch.complex64),
    ),
    sample(aten.vdot.default, normal(4), normal(4)),
    sample(
        aten.vdot.default,
        torch.complex(normal(4), normal(4)),
        torch.complex(normal(4), normal(4)),
    ),
    sample(aten.addr.default, normal(3, 5), normal(3), normal(5), beta=0.5, alpha=2),
    sample(aten.addr.default, nan, normal(3), normal(5), beta=0),
    sample(aten.addr.default, normal(5), whole(3), whole(5)),
    sample(aten.addr.default, whole(3, 5), whole(3), whole(5), alpha=2),
    sample(
        aten.addr.default,
        normal(3, 5, dtype=torch.bfloat16),
        normal(3, dtype=torch.bfloat16),
        normal(5, dtype=torch.bfloat16),
    ),
    sample(aten.addr.default, whole(3, 5) > 0, whole(3) > 0, whole(5) > 0),
]
