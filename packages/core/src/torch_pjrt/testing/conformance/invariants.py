"""What of a result is determined, where the rest is anybody's choice.

That are the signs of a factorization, and which of several equal elements an index names. That indices name
the values beside them is checked by the rules' own samples.
"""

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


def _of_eigh(results: Tensors) -> Tensors:
    values, vectors = results
    return values, (vectors * values.to(vectors.dtype).unsqueeze(-2)) @ vectors.mH


def _of_eig(results: Tensors) -> Tensors:
    values, vectors = results
    if not vectors.numel():
        return results
    return values, (vectors * values.unsqueeze(-2)) @ torch.linalg.inv(vectors)


def _looks(results: Tensors) -> Tensors:
    return [torch.zeros_like(x) for x in results]


def _values_of_ties(results: Tensors) -> Tensors:
    """The values, and what the indices look like."""
    return results[0], torch.zeros_like(results[1])


#   operator of op_db, what of its results is compared
INVARIANTS: dict[str, Callable[[Tensors], Tensors]] = {
    "argsort": _looks,
    "kthvalue": _values_of_ties,
    "linalg.eig": _of_eig,
    "linalg.eigh": _of_eigh,
    "linalg.svd": _of_linalg_svd,
    "mode": _values_of_ties,
    "pca_lowrank": _of_svd,
    "sort": _values_of_ties,
    "svd": _of_svd,
    "svd_lowrank": _of_svd,
    "topk": _values_of_ties,
}


def determined(operator: str, value: Any) -> Tensors | None:
    """The determined part of an operator's results; None where that is all of them."""
    compute = INVARIANTS.get(operator)
    if compute is None:
        return None
    if isinstance(value, torch.Tensor):
        value = [value]
    while isinstance(value[0], (list, tuple)):  # of an `out=`: the results come with facts
        value = value[0]
    return compute([x.detach().cpu().contiguous() for x in value])
