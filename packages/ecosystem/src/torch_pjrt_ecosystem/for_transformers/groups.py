"""Tokens by the experts that were chosen for them: sorted, each multiplied by its own, and summed again.

No value is read: which expert has how many tokens is known on the device alone, and one program serves all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows that lie by expert. Behind those of the last are rows that no expert has.

    ends  for each expert the number of the row behind its last, int32.
    """

    ends: Tensor

    @classmethod
    def of_sizes(cls, sizes: Tensor) -> Groups:
        """Of so many rows for each expert."""
        return cls(sizes.cumsum(0).to(torch.int32))

    def product(self, rows: Tensor, weights: Tensor, bias: Tensor | None = None) -> Tensor:
        """Each row times the weight of its expert: (rows, k) and (experts, k, m) give (rows, m).

        Zeros for a row that no expert has. In autocast's dtype where that is on, or else in the weights'.
        """
        kind, dtype = rows.device.type, weights.dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        found = F.grouped_mm(rows.to(dtype), weights.to(dtype), offs=self.ends)
        if bias is None:
            return found
        numbers = torch.arange(len(rows), device=rows.device)
        of_none = F.pad(bias.to(dtype), (0, 0, 0, 1))
        return found + of_none[torch.searchsorted(self.ends, numbers, right=True)]

    def has_expert(self, rows: Tensor) -> Tensor:
        """For each row whether it has one: (rows, 1)."""
        return (torch.arange(len(rows), device=rows.device) < self.ends[-1])[:, None]


def sizes(chosen: Tensor, n_experts: int) -> Tensor:
    """How many of these each expert has."""
    return (chosen[:, None] == torch.arange(n_experts, device=chosen.device)).sum(0)


def routed(
    tokens: Tensor,
    chosen: Tensor,
    weights: Tensor,
    n_experts: int,
    expert: Callable[[Tensor, Groups], Tensor],
) -> Tensor:
    """For each token the sum of what its experts make of it, by weight: (tokens, width).

    tokens   (tokens, width).
    chosen   (tokens, k) integers: the experts of each token. One that is `n_experts` or more is none.
    weights  (tokens, k): what each expert's result is multiplied by.
    expert   gives (rows, width) for rows that lie by expert.
    """
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    of_token = order // chosen.shape[-1]
    found = expert(tokens[of_token], Groups.of_sizes(sizes(flat, n_experts)))
    weighted = found * weights.flatten()[order, None]
    return torch.zeros_like(tokens).index_add(0, of_token, weighted.to(tokens.dtype))
