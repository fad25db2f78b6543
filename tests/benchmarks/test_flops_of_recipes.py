"""The benchmark of recipes counts the FLOPs of a step as PyTorch counts those of its products."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
recipes: Any = importlib.import_module("recipes")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
LLAMA = {**recipes._llama(64, 176, 4, 2), "vocab_size": 256}
GPT_2 = {**recipes._gpt2(64, 4), "vocab_size": 256, "n_positions": 128}
RESNET = recipes.RECIPES["ResNet-50, data parallel"]


@pytest.mark.slow("rows")
@pytest.mark.parametrize(
    "recipe",
    [
        recipes.Recipe("llama", LLAMA, 3, "v4:2x2x1", 2, 128),
        recipes.Recipe("gpt2", GPT_2, 3, "v4:2x2x1", 2, 128),
        replace(RESNET, rows=2),
    ],
    ids=lambda recipe: recipe.model,
)
def test_flops_of_a_step_are_those_of_its_products(recipe: Any) -> None:
    model = recipes.model_of(recipe)
    if recipe.model != "resnet":
        model = model.to_empty(device="cpu")  # it asks what is in its positions
        model.set_attn_implementation("eager")
        given = torch.zeros(recipe.rows, recipe.length, dtype=torch.int64)
    else:
        given = torch.zeros(recipe.rows, 3, 224, 224, device="meta", requires_grad=True)

    with FlopCounterMode(display=False) as counted:
        model(given).logits.sum().backward()

    assert recipes.model_flops(recipe) == pytest.approx(counted.get_total_flops(), rel=0.02)


@pytest.mark.parametrize(
    ("few", "expected"), [((18.4, 30.4), 390.4), ((), None), ((18.4, None), None)]
)
def test_operations_of_many_layers_are_on_a_line(
    few: tuple[float | None, ...], expected: float | None
) -> None:
    assert recipes.by_the_line(32, *few) == pytest.approx(expected)
