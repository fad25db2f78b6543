"""Where versions of PyTorch compute different things. What the installed one does is found by trying."""

from __future__ import annotations

import torch

# `arange` into int64 makes integers of its numbers before it counts how many there are; else afterwards.
ARANGE_COUNTS_INTEGERS = len(torch.arange(0.5, dtype=torch.int64, device="cpu")) == 0


def _softshrink_rounds() -> bool:
    x = torch.ones((), dtype=torch.float16, device="cpu")
    return bool(torch.nn.functional.softshrink(x, 0.8) == x - torch.full_like(x, 0.8))


# `softshrink` of a half tensor rounds `lambd` to half, too.
SOFTSHRINK_ROUNDS_LAMBD = _softshrink_rounds()
