"""What of a result is determined, where the rest is anybody's choice: the signs of a factorization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]


def _product(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> Tensors:
    """The singular values, and the matrix that the factors make. Both factors may be square."""
    n = s.shape[-1]
    return s, (u[..., :n] * s.to(u.dtype).unsqueeze(-2)) @ vh[..., :n, :]


def _of_svd(results: Tensors) -> Tensors:
    u, s, v = results
    return _product(u, s, v.mH)


def _of_linalg_svd(results: Tensors) -> Tensors:
    return _product(results[0], results[1], results[2])


#   operator of op_db, what of its results is compared
INVARIANTS: dict[str, Callable[[Tensors], Tensors]] = {
    "linalg.svd": _of_linalg_svd,
    "pca_lowrank": _of_svd,
    "svd": _of_svd,
    "svd_lowrank": _of_svd,
}


def determined(operator: str, value: Any) -> Tensors | None:
    """The determined part of an operator's results; None where that is all of them."""
    compute = INVARIANTS.get(operator)
    if compute is None:
        return None
    while isinstance(value[0], (list, tuple)):  # of an `out=`: the results come with facts
        value = value[0]
    return compute([x.detach().cpu() for x in value])
