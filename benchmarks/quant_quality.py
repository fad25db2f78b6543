"""Perplexity of a small model whose weights are rounded to few bits, by nearest, GPTQ and AWQ.

    python benchmarks/quant_quality.py [--steps 300] > benchmarks/results/quant-quality.md

A GPT of characters is trained on the pages of docs/, all but the last of which it is then tested on.
Perplexity is of what is written there; the divergence is that of the predictions from float32's, which says
more of a small change: how far perplexity goes up and down by chance, the rows of random rounding say.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_pjrt
from torch_pjrt_quant import Int4, Int8, Nf4, awq_, gptq_, packing, quantize_

WIDTH, LAYERS, HEADS, LENGTH, BATCH = 128, 3, 4, 64, 32
F = torch.nn.functional


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Gpt(torch.nn.Module):
    def __init__(self, letters: int) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(letters, WIDTH)
        self.positions = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, letters)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))


def loss_of(model: torch.nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def divergence(model: torch.nn.Module, other: torch.nn.Module, rows: Tensor) -> Tensor:
    """The mean KL divergence of the other model's predictions from the model's, in nats a letter."""
    ours, theirs = (F.log_softmax(m(rows[:, :-1]), -1) for m in (model, other))
    return (ours.exp() * (ours - theirs)).sum(-1).mean()


def rounded_by_chance(
    model: torch.nn.Module, which: Callable[[str, Any], bool], config: Int4
) -> None:
    """Round to nearest after columns were multiplied by random factors from 0.9 to 1.1."""
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and which(name, layer):
            factor = torch.empty(layer.in_features, device="pjrt").uniform_(0.9, 1.1)
            numbers = packing.to_int4(layer.weight * factor, config.group_size)
            layer.weight = torch.nn.Parameter(packing.from_int4(*numbers) / factor)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    pages = [p.read_text() for p in sorted(Path(__file__).parents[1].glob("docs/*.md"))]
    letters = sorted(set("".join(pages)))
    coded = torch.tensor([letters.index(c) for c in "".join(pages)])
    n_rows = len(coded) // (LENGTH + 1)
    rows = coded[: n_rows * (LENGTH + 1)].view(n_rows, -1)
    train, test = rows[: -4 * BATCH], rows[-4 * BATCH :].to("pjrt")
    model = Gpt(len(letters)).to("pjrt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        loss = loss_of(model, train[torch.randint(len(train), (BATCH,))].to("pjrt"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch_pjrt.sync()
    calibration = [train[torch.randint(len(train), (BATCH,)), :-1].to("pjrt") for _ in range(4)]

    def inner(name: str, _: Any) -> bool:
        return name != "head"

    coarse, even = Int4(128, symmetric=True), Int4(32, symmetric=True)
    ways: dict[str, Callable[[Gpt], Any]] = {
        "float32": lambda m: m,
        "int8": lambda m: quantize_(m, Int8(), inner),
        "int8 dynamic": lambda m: quantize_(m, Int8(dynamic=True), inner),
        "nf4, groups of 64": lambda m: quantize_(m, Nf4(64), inner),
        "int4, groups of 32": lambda m: quantize_(m, Int4(32), inner),
        "int4, groups of 32, GPTQ": lambda m: gptq_(m, calibration, Int4(32), inner),
        "int4, groups of 32, AWQ": lambda m: awq_(m, calibration, Int4(32), inner),
        "int4 symmetric, groups of 32": lambda m: quantize_(m, even, inner),
        "int4 symmetric, groups of 32, GPTQ": lambda m: gptq_(m, calibration, even, inner),
        "int4 symmetric, groups of 32, AWQ": lambda m: awq_(m, calibration, even, inner),
        "int4 symmetric, groups of 128": lambda m: quantize_(m, coarse, inner),
        "int4 symmetric, groups of 128, GPTQ": lambda m: gptq_(m, calibration, coarse, inner),
        "int4 symmetric, groups of 128, GPTQ ordered": lambda m: gptq_(
            m, calibration, coarse, inner, ordered=True
        ),
        "int4 symmetric, groups of 128, AWQ": lambda m: awq_(m, calibration, coarse, inner),
    }
    for n in range(4):
        ways[f"int4, groups of 32, by chance, {n}"] = lambda m: rounded_by_chance(
            m, inner, Int4(32)
        )
    print("# Perplexity with weights of few bits\n")
    print(
        f"Made by `python benchmarks/quant_quality.py`: a GPT of characters ({LAYERS} layers, width"
    )
    print(
        f"{WIDTH}), {steps} steps. The head stays float32. Divergence is that of the predictions from"
    )
    print(
        "float32's (KL, nats a letter). By chance: columns are multiplied by random factors from 0.9"
    )
    print(
        "to 1.1 before they are rounded to nearest, so that rows say what chance does to perplexity.\n"
    )
    print("| weights | perplexity | more | divergence |\n|---|--:|--:|--:|")
    first = 0.0
    for name, way in ways.items():
        changed = copy.deepcopy(model)
        way(changed)
        with torch.no_grad():
            perplexity = math.exp(loss_of(changed, test).item())
            apart = divergence(model, changed, test).item()
        first = first or perplexity
        more = 100 * (perplexity / first - 1)
        print(f"| {name} | {perplexity:.4f} | {more:.3f} % | {apart:.5f} |", flush=True)


if __name__ == "__main__":
    main()
