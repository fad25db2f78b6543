"""Composite operators whose C++ writes through `_unsafe_view`, which is a copy here.

There a view is an operator like any other: products of matrices end with one, and true views cost more.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.overloads import aten


def kron_out(self: torch.Tensor, other: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """The Kronecker product, written to `out` as a product's `out=` is: resized, cast or refused."""
    product = torch.kron(self, other)
    return torch.mul(product, torch.ones((), dtype=product.dtype), out=out)


KERNELS: dict[Any, Any] = {aten.kron.out: kron_out}
