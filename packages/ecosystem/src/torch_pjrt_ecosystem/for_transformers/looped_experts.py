"""Experts of DBRX, JetMoe, LongCat-Flash and Step-3.7 by groups, as `transformers.integrations.moe` has them
for other models.

Their own code reads which experts have tokens, and how many, and loops over those: other programs for other
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_pjrt_ecosystem.for_transformers.groups import Groups, routed, sizes
from torch_pjrt_ecosystem.replacing import wrap


def install_dbrx(modeling: Any) -> None:
    """`modeling` is `transformers.models.dbrx.modeling_dbrx`."""
    wrap(modeling.DbrxExperts, "forward", _dbrx)


def install_jetmoe(modeling: Any) -> None:
    """`modeling` is `transformers.models.jetmoe.modeling_jetmoe`."""
    wrap(modeling.JetMoeTopKGating, "forward", _jetmoe_gating)
    wrap(modeling.JetMoeParallelExperts, "forward", _jetmoe_experts)


def install_longcat_flash(modeling: Any) -> None:
    """`modeling` is `transformers.models.longcat_flash.modeling_longcat_flash`."""
    wrap(modeling.LongcatFlashExperts, "forward", _longcat_flash)


def install_step(modeling: Any) -> None:
    """`modeling` is `transformers.models.step3p7.modeling_step3p7`."""
    wrap(modeling.Step3p7Experts, "forward", _step)


Forward = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


def _on_the_device(forward: Forward) -> Callable[..., Tensor]:
    """In the place of a layer of experts: this one's on the device, and the model's own elsewhere."""

    def around(
        original: Forward,
        self: Any,
        hidden_states: Tensor,
        top_k_index: Tensor,
        top_k_weights: Tensor,
    ) -> Tensor:
        is_here = hidden_states.device.type == "pjrt"
        run = forward if is_here else original
        return run(self, hidden_states, top_k_index, top_k_weights)

    return around


@_on_the_device
def _dbrx(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    mlp = self.mlp
    shape = (self.num_experts, self.ffn_hidden_size, self.hidden_size)
    w1, v1, w2 = (w.view(shape) for w in (mlp.w1, mlp.v1, mlp.w2))

    def expert(rows: Tensor, groups: Groups) -> Tensor:
        inner = mlp.activation_fn(groups.product(rows, w1.mT)) * groups.product(rows, v1.mT)
        return groups.product(inner, w2)

    tokens = hidden_states.reshape(-1, self.hidden_size)
    summed = routed(tokens, top_k_index, top_k_weights, self.num_experts, expert)
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
    return order, order // self.top_k, gates[order], sizes(chosen, self.num_experts), logits


def _jetmoe_experts(
    original: Callable[..., Tensor], self: Any, inputs: Tensor, of_groups: Any
) -> Tensor:
    if not isinstance(of_groups, Tensor):
        return original(self, inputs, of_groups)
    return Groups.of_sizes(of_groups).product(inputs, self.weight.mT)


@_on_the_device
def _longcat_flash(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Experts behind the last give a token as it is."""
    n_experts = self.num_routed_experts

    def expert(rows: Tensor, groups: Groups) -> Tensor:
        if not n_experts:
            return rows
        gate, up = groups.product(rows, self.gate_up_proj[:n_experts].mT).chunk(2, dim=-1)
        found = groups.product(self.act_fn(gate) * up, self.down_proj.mT)
        return torch.where(groups.has_expert(rows), found, rows)

    return routed(hidden_states, top_k_index, top_k_weights, n_experts, expert)


@_on_the_device
def _step(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The expert behind the last gives nothing."""

    def expert(rows: Tensor, groups: Groups) -> Tensor:
        gated = self._apply_gate(groups.product(rows, self.gate_up_proj.mT))
        return groups.product(gated, self.down_proj.mT)

    return routed(hidden_states, top_k_index, top_k_weights, self.num_experts, expert)
