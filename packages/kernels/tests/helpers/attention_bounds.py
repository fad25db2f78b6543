"""How far attention in floats may be from what it is: by the number of roundings, element by element.

Higham, "Accuracy and Stability of Numerical Algorithms" (2002), section 3.1: a sum of n products is off by at
most g(n) = n u / (1 - n u) times the sum of their sizes, in whatever order they are added.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt_kernels.attention import reference

Tensor = torch.Tensor
_UNITS = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# What exp, tanh and a division may be off by, in units of rounding.
_OF_A_FUNCTION = 8


def bounds(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, form: dict[str, Any], arrays: list[Any],
    kept: Tensor | None, dtype: torch.dtype, dropout_p: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of the output and of the gradients of query, key and value. What is given is in float64."""
    u = _UNITS[dtype]

    def g(n: int) -> float:
        return n * u / (1 - n * u)

    n_sharing = query.shape[1] // key.shape[1]
    k, v = (x.repeat_interleave(n_sharing, 1) for x in (key, value))
    width, n_values = query.shape[3], value.shape[3]
    n_queries, n_keys = query.shape[2], key.shape[2]
    scale = query.shape[3] ** -0.5
    weights, logsumexp = reference.weights(query, key, *arrays, **form)
    # The scores: their products, and what is added to them.
    added = [x.abs().amax() for x in arrays[:2] if x is not None and x.is_floating_point()]
    reach = sum(float(x) * (1 if i == 0 else max(n_queries, n_keys)) for i, x in enumerate(added))
    of_scores = g(width + _OF_A_FUNCTION) * scale * (query.abs() @ k.abs().mT) + 8 * u * reach
    if form.get("soft_cap") is not None:
        of_scores = of_scores + _OF_A_FUNCTION * u * form["soft_cap"]
    # The weights, relative to each: the exponent, where all of its row's scores are off, and the sum.
    exponents = (
        torch.where(weights > 0, weights, 1.0).log().abs()
        + logsumexp.abs().nan_to_num(0, 0, 0)[..., None]
    )
    of_row = of_scores.amax(-1, keepdim=True)
    relative = 2 * of_row + 4 * u * exponents + g(2 * n_keys + 4 * _OF_A_FUNCTION)
    share = 1.0 if kept is None else kept / (1 - dropout_p)
    used = weights * share
    of_out = (used * relative) @ v.abs() + g(n_keys + 4) * (used @ v.abs())
    out = used @ v
    of_value = (used * (relative + g(n_queries + 4))).mT @ grad.abs()
    of_weights = (grad @ v.mT) * share
    along = (grad * out).sum(-1, keepdim=True)
    of_scores_grad = weights * (of_weights - along)
    sizes = (grad.abs() @ v.abs().mT) * share + (grad.abs() * out.abs()).sum(-1, keepdim=True)
    off = weights * (relative * (of_weights - along).abs() + g(n_values + 8) * sizes)
    off = off + weights * (grad.abs() * of_out).sum(-1, keepdim=True)
    if form.get("soft_cap") is not None:
        off = off + weights * sizes * (2 * of_row + 2 * _OF_A_FUNCTION * u)
    size = off + g(n_queries + n_keys + 8) * of_scores_grad.abs()
    of_query = scale * (size @ k.abs())
    of_key = scale * (size.mT @ query.abs())

    def gathered(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, n_sharing)).sum(2)

    return of_out, of_query, gathered(of_key), gathered(of_value)
