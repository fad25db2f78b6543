"""The factor of `ReduceOp.PREMUL_SUM`, which PyTorch does not pass on to kernels in Python.

The object that a kernel is given tells its kind alone. The user's own `ReduceOp` has the factor, and is a
local variable of one of the functions that have called the kernel: `op` of `torch.distributed.all_reduce`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist

from torch_pjrt.errors import TorchPjrtError


def factor_of_callers() -> float:
    """The factor of the innermost `ReduceOp` or options that a caller holds as a variable."""
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            op = getattr(value, "reduceOp", value)
            if type(op) is dist.ReduceOp and op == dist.ReduceOp.PREMUL_SUM:
                premultiplied: Any = op
                return float(premultiplied.factor)
        frame = frame.f_back
    raise TorchPjrtError(
        "The factor of `ReduceOp.PREMUL_SUM` is not to be found.",
        saw="no function that called the collective has the `ReduceOp` in a variable",
        hint="call it by a function of `torch.distributed`, with `op=` a `ReduceOp` of this very call",
    )
