"""Experts of Switch Transformers and NLLB-MoE, each a module of its own, by groups.

Their own code reads which experts have tokens, and calls the modules of those: other programs for other
tokens. Here weights of all are stacked in each forward, so an expert without tokens has gradients of zeros,
and not none: an optimizer with decay, or with moments, changes its weights in that step, too.

Experts that are not what the model has made (other classes, hooks, adapters) are left to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_pjrt_ecosystem.for_transformers.groups import Groups, routed
from torch_pjrt_ecosystem.replacing import wrap


def install_switch(modeling: Any) -> None:
    """`modeling` is `transformers.models.switch_transformers.modeling_switch_transformers`."""

    def forward(
        original: Callable[..., Tensor],
        self: Any,
        hidden_states: Tensor,
        selected_experts: Tensor,
        routing_weights: Tensor,
    ) -> Tensor:
        """`selected_experts` is (tokens, 1, experts): a one for the expert of a token, or zeros."""
        experts = _plain(self, modeling.SwitchTransformersDenseActDense, ("wi", "wo"))
        if hidden_states.device.type != "pjrt" or experts is None:
            return original(self, hidden_states, selected_experts, routing_weights)
        n_experts = self.num_experts
        is_chosen = selected_experts.squeeze(1).sum(-1, keepdim=True) > 0
        chosen = torch.where(is_chosen, selected_experts.argmax(-1), n_experts)
        return routed(
            hidden_states, chosen, routing_weights, n_experts, _two_layers(experts, "wi", "wo")
        )

    wrap(modeling.SwitchTransformersExperts, "forward", forward)


def install_nllb(modeling: Any) -> None:
    """`modeling` is `transformers.models.nllb_moe.modeling_nllb_moe`."""

    def forward(
        original: Callable[..., Tensor],
        self: Any,
        hidden_states: Tensor,
        router_mask: Tensor,
        router_probs: Tensor,
    ) -> Tensor:
        """`router_mask` is (tokens, experts), and the model takes each of its numbers for an expert's."""
        experts = _plain(self, modeling.NllbMoeDenseActDense, ("fc1", "fc2"))
        if hidden_states.device.type != "pjrt" or experts is None:
            return original(self, hidden_states, router_mask, router_probs)
        layers = _two_layers(experts, "fc1", "fc2")

        def expert(rows: Tensor, groups: Groups) -> Tensor:
            found = layers(rows, groups)
            if self.training:
                return self.token_dropout(found)
            return found * (1 - self.moe_token_dropout)

        return routed(hidden_states, router_mask, router_probs, self.num_experts, expert)

    wrap(modeling.NllbMoeExperts, "forward", forward)


def _plain(experts: Any, kind: type, linears: tuple[str, str]) -> list[Any] | None:
    """The modules, where each is of this class, with linear layers that do nothing but multiply."""
    found = [experts[f"expert_{i}"] for i in range(experts.num_experts)]
    layers = [getattr(module, name, None) for module in found for name in linears]
    if any(type(module) is not kind for module in found):
        return None
    if any(type(layer) is not nn.Linear for layer in layers):
        return None
    return None if any(map(_has_hooks, [*found, *layers])) else found


def _has_hooks(module: Any) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _two_layers(experts: list[Any], first: str, second: str) -> Callable[[Tensor, Groups], Tensor]:
    """A linear layer, the activation, dropout, and a linear layer."""

    def stacked(name: str) -> tuple[Tensor, Tensor | None]:
        layers = [getattr(module, name) for module in experts]
        bias = None if layers[0].bias is None else torch.stack([layer.bias for layer in layers])
        return torch.stack([layer.weight for layer in layers]).mT, bias

    def expert(rows: Tensor, groups: Groups) -> Tensor:
        inner = groups.product(rows, *stacked(first))
        return groups.product(experts[0].dropout(experts[0].act(inner)), *stacked(second))

    return expert
