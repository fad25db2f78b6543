"""The Llama of the benchmark that generates text, written by hand in JAX, gives PyTorch's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.slow("file")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "generation"
N_TOKENS = 6

Weights = dict[str, torch.Tensor]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    monkeypatch.syspath_prepend(FOLDER)
    import text_jax  # pyright: ignore[reportMissingImports]
    import text_sizes  # pyright: ignore[reportMissingImports]

    return text_jax, text_sizes


def random_weights(sizes: Any) -> Weights:
    """Under the names of Hugging Face's Llama; norms near 1."""
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    def norm() -> torch.Tensor:
        return 1 + torch.randn(sizes.width, generator=generator) / 10

    of_heads = sizes.width // sizes.heads * sizes.kv_heads
    weights = {
        "model.embed_tokens.weight": matrix(sizes.vocabulary, sizes.width),
        "model.norm.weight": norm(),
        "lm_head.weight": matrix(sizes.vocabulary, sizes.width),
    }
    for i in range(sizes.layers):
        for name, rows, columns in [
            ("self_attn.q_proj", sizes.width, sizes.width),
            ("self_attn.k_proj", of_heads, sizes.width),
            ("self_attn.v_proj", of_heads, sizes.width),
            ("self_attn.o_proj", sizes.width, sizes.width),
            ("mlp.gate_proj", sizes.inner, sizes.width),
            ("mlp.up_proj", sizes.inner, sizes.width),
            ("mlp.down_proj", sizes.width, sizes.inner),
        ]:
            weights[f"model.layers.{i}.{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{i}.{name}.weight"] = norm()
    return weights


def logits_of(sizes: Any, weights: Weights, ids: torch.Tensor) -> torch.Tensor:
    """Of the token after `ids`, (1, length): no padding, no cache, one attention over all."""
    length, width = ids.shape[1], sizes.width // sizes.heads
    frequencies = sizes.base ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    cosine, sine = (f(angles).repeat(1, 2) for f in (torch.cos, torch.sin))

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (sizes.width,), weights[f"{name}.weight"], sizes.epsilon)

    def heads(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, weights[f"{name}.weight"]).view(1, length, -1, width).transpose(1, 2)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat((-second, first), -1) * sine

    x = weights["model.embed_tokens.weight"][ids]
    for i in range(sizes.layers):
        layer = f"model.layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        query, key, value = (heads(y, f"{layer}.self_attn.{n}_proj") for n in "qkv")
        mixed = F.scaled_dot_product_attention(
            turned(query), turned(key), value, is_causal=True, enable_gqa=True
        )
        mixed = mixed.transpose(1, 2).reshape(1, length, -1)
        x = x + F.linear(mixed, weights[f"{layer}.self_attn.o_proj.weight"])
        y = norm(x, f"{layer}.post_attention_layernorm")
        gate, up = (F.linear(y, weights[f"{layer}.mlp.{n}_proj.weight"]) for n in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, weights[f"{layer}.mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm")[:, -1], weights["lm_head.weight"])


def test_tokens_are_those_of_pytorch_for_prompts_with_and_without_padding(
    modules: tuple[Any, Any],
) -> None:
    text_jax, text_sizes = modules
    sizes = text_sizes.Sizes(layers=2, width=64, inner=96, heads=4, kv_heads=2, vocabulary=128)
    weights = random_weights(sizes)
    generator = text_jax.JaxGenerator(sizes, weights, text_sizes.room_for(N_TOKENS))
    for prompt in text_sizes.prompts_of(sizes):
        tokens = [generator.first(prompt), *(generator.next() for _ in range(N_TOKENS - 1))]

        wanted = prompt
        for _ in range(N_TOKENS):
            following = logits_of(sizes, weights, wanted).argmax(-1, keepdim=True)
            wanted = torch.cat((wanted, following), 1)
        assert generator.read(tokens) == wanted[0, -N_TOKENS:].tolist()


def test_programs_are_one_for_each_bucket_and_one_to_decode(modules: tuple[Any, Any]) -> None:
    text_jax, text_sizes = modules
    sizes = text_sizes.Sizes(layers=1, width=16, inner=16, heads=2, kv_heads=1, vocabulary=32)
    generator = text_jax.JaxGenerator(sizes, random_weights(sizes), text_sizes.room_for(N_TOKENS))
    for prompt in text_sizes.prompts_of(sizes):
        tokens = [generator.first(prompt), *(generator.next() for _ in range(N_TOKENS - 1))]
        generator.read(tokens)

    assert generator.programs_compiled() == len(text_sizes.BUCKETS) + 1
