"""The sum of the ranks' sparse tensors: each gets the indices and values of all, however many a rank has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_pjrt_spmd.distributed.errors import CollectiveError
from torch_pjrt_spmd.distributed.group import Group
from torch_pjrt_spmd.distributed.reductions import Kind

# Of each rank as much as its output has.
Gather = Callable[[Group, Sequence[torch.Tensor], torch.Tensor], None]


def sum_in_place(group: Group, x: torch.Tensor, kind: Any, gather: Gather) -> None:
    """Write the sum into a COO tensor, coalesced; `CollectiveError` for another layout or reduction."""
    if kind != Kind.SUM or x.layout is not torch.sparse_coo:
        raise CollectiveError(
            "Of sparse tensors there is the sum, of COO tensors.",
            saw=f"{kind.name} of {x.layout}",
            hint="`to_dense()` gives a tensor that can be reduced",
        )
    own = x.coalesce()
    indices, values = own.indices().t().contiguous(), own.values().contiguous()
    group.flush()
    described = [text.rsplit(";", 1) for text in group.peers.exchange(f"{_kind(x)};{len(values)}")]
    if len({kind for kind, _ in described}) > 1:
        raise CollectiveError(
            "Sparse tensors that are added up are of one shape and dtype.",
            saw=" and ".join(kind for kind, _ in described),
        )
    counts = [int(n) for _, n in described]
    every = [_gathered(group, part, counts, gather) for part in (indices, values)]
    total = torch.sparse_coo_tensor(
        every[0].t(), every[1], x.shape, check_invariants=False, device=every[1].device
    )
    x.copy_(total.coalesce())


def _kind(x: torch.Tensor) -> str:
    return f"{x.dtype} {list(x.shape)} with {x.dense_dim()} dense dims"


def _gathered(
    group: Group, rows: torch.Tensor, counts: Sequence[int], gather: Gather
) -> torch.Tensor:
    """The rows of all ranks, one rank after the other."""
    every = [rows.new_empty((n, *rows.shape[1:])) for n in counts]
    gather(group, every, rows)
    return torch.cat(every)
