"""Known recipes at full size, compiled ahead of time for slices of TPUs: what a step needs on each chip.

    python benchmarks/recipes.py [--only NAME ...] [--layers N ...] [--out FILE]

Needs `libtpu` and Transformers. Models are Transformers' own; their weights are never made. AdamW in float32,
layers in bfloat16, each layer computed again in backward (ResNet-50: SGD, autocast). Each recipe is compiled
in a process of its own. Columns: memory of a chip (inputs; in all); operations on floats of the program by
XLA's count, and of the model by the usual formula (6 for each parameter and token, and attention), both of
each chip in a step; how long the model's would take at the chip's peak, and at the published utilization.

Layers are a loop in the program, which is compiled at the model's whole depth: memory is of that. XLA counts
what a loop does once, so operations are the line through programs of one layer and of two, which are compiled
as well (`--quick`: they are not, and are not counted). With `--layers 2 4` the model has so many layers.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

# bfloat16, of a chip.
PEAK = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12}


@dataclass(frozen=True)
class Recipe:
    """A model, where it trains, and what was published of it.

    model      `llama`, `gpt2` or `resnet`.
    sizes      of its configuration.
    layers     how many.
    target     a slice, by its chips.
    rows       sequences, or images, of each chip.
    length     of a sequence in tokens.
    model_chips    over how many chips layers are spread by hand (the rest is FSDP); 1 for none.
    published  a utilization of the chips' peak, and of which run.
    """

    model: str
    sizes: dict[str, int]
    layers: int
    target: str
    rows: int
    length: int = 0
    model_chips: int = 1
    published: tuple[float, str] | None = None

    @property
    def n_chips(self) -> int:
        return prod(int(side) for side in self.target.partition(":")[2].split("x"))


def _llama(width: int, inner: int, heads: int, kv_heads: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 32000,
    }


def _gpt2(width: int, heads: int) -> dict[str, int]:
    return {"n_embd": width, "n_head": heads, "n_positions": 1024, "vocab_size": 50304}


LLAMA_2 = (0.53, "Llama 2 by SPMD, torch_xla 2.1: 53 % and more")
GPT_2 = (0.39, "GPT-2 16B by FSDP on v4-64, torch_xla 2.0: 39 %")
RECIPES = {
    "Llama 2 7B, FSDP": Recipe(
        "llama", _llama(4096, 11008, 32, 32), 32, "v4:2x4x4", 4, 2048, published=LLAMA_2
    ),
    "Llama 2 13B, FSDP": Recipe(
        "llama", _llama(5120, 13824, 40, 40), 40, "v4:2x4x4", 4, 2048, published=LLAMA_2
    ),
    "Llama 2 70B, FSDP": Recipe(
        "llama", _llama(8192, 28672, 64, 8), 80, "v4:4x4x8", 2, 2048, published=LLAMA_2
    ),
    "Llama 2 70B, FSDP and SPMD over 4": Recipe(
        "llama", _llama(8192, 28672, 64, 8), 80, "v4:4x4x8", 2, 2048, 4, LLAMA_2
    ),
    "GPT-2 1.5B, FSDP": Recipe("gpt2", _gpt2(1600, 25), 48, "v4:2x2x1", 8, 1024),
    "GPT-2 16B, FSDP": Recipe("gpt2", _gpt2(5120, 40), 50, "v4:2x4x4", 16, 1024, published=GPT_2),
    "ResNet-50, data parallel": Recipe("resnet", {}, 1, "v4:2x2x1", 128),
}


def model_of(recipe: Recipe) -> Any:
    """The model, without weights: on the meta device."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    made: dict[str, Callable[[], Any]] = {
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **recipe.sizes,
                num_hidden_layers=recipe.layers,
                max_position_embeddings=recipe.length,
                use_cache=False,
            )
        ),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                **recipe.sizes,
                n_layer=recipe.layers,
                use_cache=False,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                tie_word_embeddings=False,
            )
        ),
        "resnet": lambda: transformers.ResNetForImageClassification(
            transformers.ResNetConfig(num_labels=1000)
        ),
    }
    with torch.device("meta"):
        return made[recipe.model]().train()


def parameters_of(recipe: Recipe) -> int:
    return sum(p.numel() for p in model_of(recipe).parameters())


def model_flops(recipe: Recipe) -> float:
    """Of a step on each chip: forward and backward, nothing computed twice; of attention, all scores."""
    if recipe.model == "resnet":
        return (
            3 * 2 * 4.09e9 * recipe.rows
        )  # multiplications and additions of an image of 224 x 224
    width = recipe.sizes["hidden_size" if recipe.model == "llama" else "n_embd"]
    looked_up = (
        recipe.sizes["vocab_size"] * width
    )  # the tokens' embeddings, which nothing is multiplied by
    looked_up += recipe.sizes.get("n_positions", 0) * width
    attention = 12 * recipe.layers * width * recipe.length
    tokens = recipe.rows * recipe.length
    return tokens * (6 * (parameters_of(recipe) - looked_up) + attention)


def spread(model: Any, recipe: Recipe, mesh: Any) -> None:
    """Layers and the rest over the chips."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from torch_pjrt_fsdp import fully_shard
    from torch_pjrt_spmd import mark_sharding

    if recipe.model_chips > 1:
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for by_column in (
                attention.q_proj,
                attention.k_proj,
                attention.v_proj,
                mlp.gate_proj,
                mlp.up_proj,
            ):
                mark_sharding(by_column.weight, mesh, ("model", None))
            for by_row in (attention.o_proj, mlp.down_proj):
                mark_sharding(by_row.weight, mesh, (None, "model"))
        mark_sharding(model.model.embed_tokens.weight, mesh, (None, "model"))
        mark_sharding(model.lm_head.weight, mesh, ("model", None))
        mesh = mesh["fsdp"]
    wrap = {"llama": "model.layers.*[0-9]", "gpt2": "transformer.h.*[0-9]"}[recipe.model]
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    fully_shard(model, mesh=mesh, wrap=wrap, mp_policy=half)


def measured(recipe: Recipe) -> dict[str, Any]:
    """Of a step, compiled for its target."""
    import torch
    import torch.nn.functional as F

    import torch_pjrt
    from torch_pjrt.errors import DeviceFull
    from torch_pjrt_spmd import Mesh, distribute_tensor

    torch_pjrt.config.cache_dir = None
    # ResNet's blocks are few of a kind, and XLA would count a loop of them once.
    torch_pjrt.config.roll_layers = "off" if recipe.model == "resnet" else "on"
    shape, names = (recipe.n_chips,), ("fsdp",)
    if recipe.model_chips > 1:
        shape, names = (recipe.n_chips // recipe.model_chips, recipe.model_chips), ("fsdp", "model")
    mesh = Mesh.for_target(recipe.target, shape, names)
    rows = shape[0] * recipe.rows * recipe.model_chips
    is_text = recipe.model != "resnet"
    model = model_of(recipe).to_empty(device="pjrt")
    if is_text:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        spread(model, recipe, mesh)
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
        given = [torch.empty(rows, recipe.length, dtype=torch.int64, device="meta")] * 2
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        given = [
            torch.empty(rows, 3, 224, 224, device="meta"),
            torch.empty(rows, dtype=torch.int64, device="meta"),
        ]
    x, y = (distribute_tensor(each, mesh, ("fsdp",)) for each in given)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("pjrt", torch.bfloat16, enabled=not is_text):
            found = model(x).logits
        loss = F.cross_entropy(found.float().flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    begun = time.perf_counter()
    try:
        found = torch_pjrt.compile_for(recipe.target, step, x, y)
    except DeviceFull as full:
        return {"full": str(full), "seconds": time.perf_counter() - begun}
    return {
        "arguments": found.argument_bytes,
        "chip": found.memory_bytes,
        "flops": found.flops,
        "collectives": dict(found.collectives),
        "seconds": time.perf_counter() - begun,
    }


HEAD = (
    "| recipe | layers | parameters | target | a chip's rows | inputs, GB | in all, GB | program, TFLOP "
    "| model, TFLOP | at the peak, s | at the published |"
)
RULE = "|---|--:|--:|---|---|--:|--:|--:|--:|--:|---|"


def row(name: str, recipe: Recipe, found: dict[str, Any]) -> str:
    """Its line of the table."""
    rows = f"{recipe.rows} x {recipe.length}" if recipe.length else f"{recipe.rows}"
    begin = f"| {name} | {recipe.layers} | {parameters_of(recipe) / 1e9:.2f}e9 | {recipe.target} | {rows} "
    if "full" in found:
        return f"{begin}| {' '.join(found['full'].split())[:120].replace('|', '/')} | | | | | |"
    flops, peak = model_flops(recipe), PEAK[recipe.target.partition(":")[0]]
    by_program = f"{found['flops'] / 1e12:.1f}" if found.get("flops") else "-"
    published = "-"
    if recipe.published:
        share, of = recipe.published
        published = f"{flops / peak / share:.2f} s ({of})"
    return (
        f"{begin}| {found['arguments'] / 1e9:.2f} | {found['chip'] / 1e9:.2f} | {by_program} "
        f"| {flops / 1e12:.1f} | {flops / peak:.2f} | {published} |"
    )


def main() -> None:
    """One after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(RECIPES))
    parser.add_argument("--layers", nargs="*", type=int, help="instead of the model's own number")
    parser.add_argument("--quick", action="store_true", help="whole depth only")
    parser.add_argument("--timeout", type=float, default=1800)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help="in this process; prints JSON")
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("USE_TORCH_XLA", "0")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    lines = [HEAD, RULE]
    print("\n".join(lines), flush=True)
    for name in given.only:
        for n in given.layers or [RECIPES[name].layers]:
            recipe = replace(RECIPES[name], layers=n)
            if given.one:
                print(json.dumps(measured(recipe)))
                return
            found = _in_a_process(name, n, given.timeout)
            if n > 2:
                few = [] if given.quick else [_in_a_process(name, k, given.timeout) for k in (1, 2)]
                found["flops"] = by_the_line(n, *(each.get("flops") for each in few))
            lines.append(row(name, recipe, found))
            print(lines[-1], flush=True)
            if given.out:
                given.out.write_text("\n".join([*lines, ""]))


def by_the_line(n: int, one: float | None = None, two: float | None = None) -> float | None:
    """Operations with `n` layers, of those with one and with two; None where one is not known."""
    return one + (n - 1) * (two - one) if one and two else None


def _in_a_process(name: str, layers: int, timeout: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", "--only", name, "--layers", str(layers)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"full": f"not compiled in {timeout:.0f} s"}
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(found[-1]) if found else {"full": (done.stderr or "?").strip()[-300:]}


if __name__ == "__main__":
    main()
