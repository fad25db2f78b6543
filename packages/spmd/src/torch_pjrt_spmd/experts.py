"""A mixture of experts whose experts are spread over a mesh axis: tokens go to them and come back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.axis_collectives import all_to_all
from torch_pjrt_spmd.cut import first_dims
from torch_pjrt_spmd.mapping import shard_map
from torch_pjrt_spmd.spec import ShardingError

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh


def mixture_of_experts(
    expert: Callable[[Any, torch.Tensor], torch.Tensor],
    parameters: Any,
    tokens: torch.Tensor,
    logits: torch.Tensor,
    mesh: AnyMesh,
    axis: str,
    *,
    top_k: int = 2,
    capacity_factor: float = 1.25,
) -> torch.Tensor:
    """Each token through the experts that its logits rate highest, weighted by their softmax.

    expert           of the parameters of one expert and tokens of (any, width); gives as many of that width.
    parameters       a list or dict of tensors, whose first dim counts the experts: mark them as `(axis,)`.
                     The chips along the axis divide the experts.
    tokens           of shape (n_tokens, width), the chips along the axis dividing them.
    logits           of shape (n_tokens, n_experts). The weights are the softmax of the chosen `top_k`.
    capacity_factor  an expert takes `ceil(top_k * n / n_experts * capacity_factor)` of the n tokens of each
                     chip, in their order. For the others it adds nothing.

    The result is of the tokens' shape and dtype, spread over the axis as they are. Two exchanges all to all:
    of the tokens, and of what came of them. Raises `ShardingError` for shapes that do not fit each other or
    that the chips do not divide.

    Lepikhin et al.: "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding"
    (2020).
    """
    n_experts = logits.shape[-1]
    counts = first_dims(parameters)
    if counts != {n_experts} or tokens.dim() != 2 or logits.shape != (len(tokens), n_experts):
        raise ShardingError(
            "Tokens, logits and parameters of a mixture of experts do not fit each other.",
            saw=f"tokens {list(tokens.shape)}, logits {list(logits.shape)}, first dims of parameters "
            f"{sorted(counts)}",
            expected="(n_tokens, width), (n_tokens, n_experts), n_experts",
        )
    if not 1 <= top_k <= n_experts:
        raise ShardingError(
            "Each token goes to at least one expert, and to one only once.",
            saw=f"top_k={top_k} of {n_experts} experts",
        )
    n_local = len(tokens) // as_mesh(mesh).axis_size(axis)
    capacity = max(1, math.ceil(top_k * n_local / n_experts * capacity_factor))

    def on_parts(own: Any, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        weights = _weights(scores, top_k, capacity).to(x.dtype)
        sent = torch.einsum("tec,tw->ecw", (weights != 0).to(x.dtype), x)
        arrived = all_to_all(sent, axis, 0, 1)
        done = torch.vmap(expert)(own, arrived)
        back = all_to_all(done, axis, 1, 0)
        return torch.einsum("tec,ecw->tw", weights, back)

    specs = ((axis,), (axis, None), (axis, None))
    mapped = shard_map(on_parts, mesh, specs, (axis, None), axis_names=(axis,))
    return mapped(parameters, tokens, logits)


def _weights(logits: torch.Tensor, top_k: int, capacity: int) -> torch.Tensor:
    """Of each token and place at an expert, (tokens, experts, capacity), its weight there; else 0."""
    best, chosen = logits.float().topk(top_k)
    # First all tokens' first choices take their places, then the second.
    takes = F.one_hot(chosen.T.reshape(-1), logits.shape[1])
    position = ((takes.cumsum(0) - 1) * takes).sum(-1)
    has_one = (position < capacity).float() * best.softmax(-1).T.reshape(-1)
    positions = F.one_hot(position.clamp(max=capacity - 1), capacity)
    each = takes[:, :, None] * positions[:, None, :] * has_one[:, None, None]
    return each.unflatten(0, (top_k, -1)).sum(0)
