"""Layers of experts that are multiplied by groups give what their own loops give on the CPU, and its
gradients, whoever has tokens; and read nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LongcatFlashConfig, NllbMoeConfig, SwitchTransformersConfig
from transformers.models.longcat_flash.modeling_longcat_flash import LongcatFlashExperts
from transformers.models.nllb_moe.modeling_nllb_moe import NllbMoeExperts
from transformers.models.step3p7.configuration_step3p7 import Step3p7TextConfig
from transformers.models.step3p7.modeling_step3p7 import Step3p7Experts
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersExperts,
)

from torch_pjrt.extend import counters

WIDTH, N, TOKENS = 8, 4, 11


def longcat() -> nn.Module:
    return LongcatFlashExperts(
        LongcatFlashConfig(
            hidden_size=WIDTH, expert_ffn_hidden_size=6, n_routed_experts=N - 1, zero_expert_num=1
        )
    )


def step() -> nn.Module:
    config = Step3p7TextConfig(hidden_size=WIDTH, n_routed_experts=N, moe_intermediate_size=6)
    return Step3p7Experts(config, swiglu_limit=0.5)


def switch() -> nn.Module:
    return SwitchTransformersExperts(
        SwitchTransformersConfig(d_model=WIDTH, d_ff=6, num_experts=N, dropout_rate=0.0)
    )


def nllb() -> nn.Module:
    config = NllbMoeConfig(d_model=WIDTH, num_experts=N, moe_token_dropout=0.25)
    return NllbMoeExperts(config, 6)


def indices(last: int) -> Callable[[torch.Generator], Tensor]:
    """The two experts of each token, of `last` and those before it."""

    def chosen(generator: torch.Generator) -> Tensor:
        return torch.rand(TOKENS, last + 1, generator=generator).argsort(-1)[:, :2]

    return chosen


def one_hot(generator: torch.Generator) -> Tensor:
    """Of an expert for each token, and of none for some."""
    chosen = torch.randint(N, (TOKENS, 1), generator=generator)
    kept = torch.rand(TOKENS, 1, 1, generator=generator) < 0.7
    return nn.functional.one_hot(chosen, N) * kept


def mask(generator: torch.Generator) -> Tensor:
    return one_hot(generator)[:, 0]


@dataclass(frozen=True)
class Case:
    """A layer, which experts tokens have, and how many weights each token has."""

    make: Callable[[], nn.Module]
    chosen: Callable[[torch.Generator], Tensor]
    n_weights: int

    def __str__(self) -> str:
        return self.make.__name__


CASES = [
    Case(longcat, indices(N - 1), 2),
    Case(step, indices(N), 2),  # the last is none
    Case(switch, one_hot, 1),
    Case(nllb, mask, N),
]


def layer_of(case: Case) -> nn.Module:
    torch.manual_seed(0)
    layer = case.make().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.25)
    return layer


def given(case: Case, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(TOKENS, WIDTH, generator=generator)
    return (
        tokens,
        case.chosen(generator),
        torch.rand(TOKENS, case.n_weights, generator=generator),
    )


def results(layer: nn.Module, device: str, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The sum of experts, and gradients of tokens, weights and parameters: zeros for none."""
    tokens, chosen, weights = (x.detach().clone().to(device) for x in given)
    tokens.requires_grad_()
    weights.requires_grad_()
    layer = copy.deepcopy(layer).to(device)
    found = layer(tokens, chosen, weights)
    found.float().square().sum().backward()
    of = [tokens, weights, *layer.parameters()]
    return [found.detach(), *(torch.zeros_like(x) if x.grad is None else x.grad for x in of)]


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_are_the_cpus_without_a_read(case: Case) -> None:
    layer = layer_of(case)
    for seed in range(3):
        reads = counters.downloads

        found = results(layer, "pjrt", given(case, seed))

        assert counters.downloads == reads
        for mine, wanted in zip(found, results(layer, "cpu", given(case, seed)), strict=True):
            torch.testing.assert_close(mine.cpu(), wanted)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_under_autocast_products_are_its(case: Case) -> None:
    layer = layer_of(case)
    tokens, chosen, weights = given(case, 0)
    with torch.autocast("cpu", torch.bfloat16):
        expected = layer(tokens, chosen, weights)

    with torch.autocast("pjrt", torch.bfloat16):
        mine = copy.deepcopy(layer).to("pjrt")
        found = mine(tokens.to("pjrt"), chosen.to("pjrt"), weights.to("pjrt"))

    assert found.dtype == expected.dtype
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=4e-2)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_tokens_for_any_expert(case: Case) -> None:
    layer = layer_of(case)
    tokens, chosen, weights = given(case, 0)
    chosen = torch.zeros_like(chosen)

    found = layer.to("pjrt")(tokens.to("pjrt"), chosen.to("pjrt"), weights.to("pjrt"))

    torch.testing.assert_close(found.cpu(), layer.to("cpu")(tokens, chosen, weights))


class Adapted(nn.Linear):
    """A layer of another class, as adapters make."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def adapted(layer: Any, name: str) -> None:
    old = getattr(layer["expert_0"], name)
    new = Adapted(old.in_features, old.out_features, old.bias is not None)
    new.load_state_dict(old.state_dict())
    setattr(layer["expert_0"], name, new)


def hooked(layer: Any, name: str) -> None:
    getattr(layer["expert_0"], name).register_forward_hook(lambda module, args, found: 2 * found)


@pytest.mark.slow("rows")
@pytest.mark.parametrize("change", [adapted, hooked])
@pytest.mark.parametrize(("case", "name"), [(CASES[2], "wo"), (CASES[3], "fc2")], ids=str)
def test_experts_of_somebody_elses_are_called(
    change: Callable[[Any, str], None], case: Case, name: str
) -> None:
    layer = layer_of(case)
    change(layer, name)

    found = results(layer, "pjrt", given(case, 1))

    for mine, wanted in zip(found, results(layer, "cpu", given(case, 1)), strict=True):
        torch.testing.assert_close(mine.cpu(), wanted)
