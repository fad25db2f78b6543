"""Experts of DBRX and JetMoe by groups, as `transformers.integrations.moe` has them for other models.

Their own code reads which experts have tokens, and how many, and loops over those: other programs for other
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_pjrt_ecosystem.replacing import wrap


def install_dbrx(modeling: Any) -> None:
    """`modeling` is `transformers.models.dbrx.modeling_dbrx`."""
    wrap(modeling.DbrxExperts, "forward", _dbrx)


def install_jetmoe(modeling: Any) -> None:
    """`modeling` is `transformers.models.jetmoe.modeling_jetmoe`."""
    wrap(modeling.JetMoeTopKGating, "forward", _jetmoe_gating)
    wrap(modeling.JetMoeParallelExperts, "forward", _jetmoe_experts)


def _grouped(rows: Tensor, weights: Tensor, sizes: Tensor) -> Tensor:
    """Rows, sorted by expert, each times the weight of its own."""
    ends = sizes.cumsum(0).to(torch.int32)
    return F.grouped_mm(rows.to(weights.dtype), weights, offs=ends)


def _sizes(chosen: Tensor, n_experts: int) -> Tensor:
    """How many of these each expert has."""
    return (chosen[:, None] == torch.arange(n_experts, device=chosen.device)).sum(0)


def _dbrx(
    original: Callable[..., Tensor],
    self: Any,
    hidden_states: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
) -> Tensor:
    if hidden_states.device.type != "pjrt":
        return original(self, hidden_states, top_k_index, top_k_weights)
    mlp, tokens = self.mlp, hidden_states.reshape(-1, self.hidden_size)
    chosen = top_k_index.flatten()
    order, sizes = chosen.argsort(stable=True), _sizes(chosen, self.num_experts)
    of_token = order // top_k_index.shape[-1]
    shape = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
    w1, v1, w2 = (w.view(shape) for w in (mlp.w1, mlp.v1, mlp.w2))
    rows = tokens[of_token]
    inner = mlp.activation_fn(_grouped(rows, w1.mT, sizes)) * _grouped(rows, v1.mT, sizes)
    weighted = _grouped(inner, w2, sizes) * top_k_weights.flatten()[order, None]
    summed = torch.zeros_like(tokens).index_add(0, of_token, weighted.to(tokens.dtype))
    return summed.view(hidden_states.shape[0], -1, self.hidden_size)


def _jetmoe_gating(original: Callable[..., Any], self: Any, hidden_states: Tensor) -> Any:
    """The same five results, with the sizes of groups as a tensor."""
    if hidden_states.device.type != "pjrt":
        return original(self, hidden_states)
    logits = self.layer(hidden_states).float()
    best, experts = logits.topk(self.top_k, dim=1)
    gates = torch.softmax(best, dim=1).type_as(hidden_states).flatten()
    chosen = experts.flatten()
    order = chosen.sort(0).indices
    return order, order // self.top_k, gates[order], _sizes(chosen, self.num_experts), logits


def _jetmoe_experts(
    original: Callable[..., Tensor], self: Any, inputs: Tensor, sizes: Any
) -> Tensor:
    if not isinstance(sizes, Tensor):
        return original(self, inputs, sizes)
    return _grouped(inputs, self.weight.mT, sizes)
