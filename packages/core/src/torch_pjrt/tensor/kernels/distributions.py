"""Random numbers in place, of distributions whose numbers may be refused.

Such a number is an input of the program when it changes, so a known signature says nothing of it: each
call looks. What is refused raises what the CPU raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.overloads import aten
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.storage.mixed_devices import refuse_mixed

#   operator                      which numbers it takes
VALID: dict[Any, Callable[..., bool]] = {
    aten.bernoulli_.float: lambda p=0.5: 0 <= p <= 1,
    aten.cauchy_.default: lambda median=0, sigma=1: sigma > 0,
    aten.exponential_.default: lambda lambd=1: lambd > 0,
    aten.geometric_.default: lambda p: 0 < p < 1,
    aten.log_normal_.default: lambda mean=1, std=2: std > 0,
    aten.normal_.default: lambda mean=0, std=1: std >= 0,
}


def _kernel(op: Any, is_valid: Callable[..., bool]) -> Callable[..., Any]:
    def kernel(
        self: torch.Tensor,
        *numbers: float,
        generator: torch.Generator | None = None,
        **named: float,
    ) -> torch.Tensor:
        if not is_valid(*numbers, **named):
            op(torch.empty(1, dtype=self.dtype, device="cpu"), *numbers, **named)  # raises
        return record.call(op, (self, *numbers), {**named, "generator": generator})

    return kernel


def bernoulli_out(
    self: torch.Tensor, *, generator: torch.Generator | None = None, out: torch.Tensor
) -> torch.Tensor:
    """As the CPU's: `out` is resized and filled in place, so it may be of integers."""
    refuse_mixed(aten.bernoulli.out, (self, out), {})
    if out.shape != self.shape:  # without a warning, as on CPU
        out.resize_(self.shape)
    return out.bernoulli_(self, generator=generator)


KERNELS: dict[Any, Any] = {
    **{op: _kernel(op, is_valid) for op, is_valid in VALID.items()},
    aten.bernoulli.out: bernoulli_out,
}
