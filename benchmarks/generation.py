"""Tokens a second of a Llama-shaped model with random weights: eager CPU, Inductor, lazy, compiled.

    pip install transformers
    python benchmarks/generation.py [--layers 8] [--tokens 64]

Hugging Face's own class, with its static cache of keys and values. A prompt is padded on the left to a
bucket; prefill and decode are two compiled functions, each compiled once for a bucket. Tokens stay on the
device until the end. The table says how long the host is busy with a token, how many programs run for one,
and how many were compiled while tokens were generated, which should be none.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt
from torch_pjrt.observe.counters import counters

BUCKETS = (16, 64)
ROUNDS = 3


def model_of(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    return LlamaForCausalLM(config).eval()


class Generator:
    """Greedy generation with a cache of fixed size; `wrap` compiles a function, or gives it back."""

    def __init__(self, model: Any, wrap: Callable[..., Any], device: str, room: int) -> None:
        from transformers import StaticCache  # pyright: ignore[reportMissingImports]

        self.model, self.device, self.room = model, device, room
        self.cache = StaticCache(config=model.config, max_cache_len=room)
        self.prefill = wrap(self._prefill)
        self.decode = wrap(self._decode)

    def _prefill(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, : ids.shape[1]]
        logits = self.model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=self.cache
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def _decode(self, token: torch.Tensor, mask: torch.Tensor, position: torch.Tensor) -> Any:
        logits = self.model(
            token, attention_mask=mask, position_ids=position, past_key_values=self.cache
        ).logits
        return logits[:, -1].argmax(-1, keepdim=True)

    def __call__(self, prompt: torch.Tensor, n_tokens: int) -> list[int]:
        bucket = next(b for b in BUCKETS if b >= prompt.shape[1])
        pad = bucket - prompt.shape[1]
        ids = torch.nn.functional.pad(prompt, (pad, 0)).to(self.device)
        mask = torch.ones(1, self.room, dtype=torch.long)
        mask[:, :pad] = 0
        mask, position = mask.to(self.device), torch.tensor([[prompt.shape[1]]]).to(self.device)
        self.cache.reset()
        with torch.no_grad():
            tokens = [self.prefill(ids, mask)]
            for _ in range(n_tokens - 1):
                tokens.append(self.decode(tokens[-1], mask, position))
                position = position + 1
                if self.device == "pjrt":
                    torch_pjrt.sync()
            return torch.cat(tokens, 1)[0].tolist()


def ways(model: Any, room: int, n_tokens: int) -> dict[str, Generator]:
    on_device = copy.deepcopy(model).to("pjrt")

    def compiled(backend: str) -> Callable[..., Any]:
        return lambda f: torch.compile(f, backend=backend, dynamic=False)

    return {
        "eager CPU": Generator(model, lambda f: f, "cpu", room),
        "Inductor": Generator(copy.deepcopy(model), compiled("inductor"), "cpu", room),
        "pjrt, lazy": Generator(on_device, lambda f: f, "pjrt", room),
        "pjrt, compiled": Generator(on_device, compiled("pjrt"), "pjrt", room),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    generators = ways(model_of(args.layers), BUCKETS[-1] + args.tokens, args.tokens)
    prompts = [torch.randint(1, 1024, (1, n)) for n in (9, 12, 16, 40)]
    columns = (
        "",
        "first, s",
        "tokens/s",
        "host, ms",
        "programs",
        "compiled meanwhile",
        "same tokens",
    )
    table = Table(*columns, title=f"{args.layers} layers, {args.tokens} tokens")
    wanted: list[list[int]] = []
    rows: dict[str, list[str]] = {}
    for name, generate in list(generators.items()):
        start = time.perf_counter()
        try:
            results = [generate(p, args.tokens) for p in prompts]
            generate(prompts[0], args.tokens)  # numbers that change have become inputs
        except Exception as error:  # Inductor wants a C++ compiler
            rows[name] = ["", f"{type(error).__name__}", "", "", "", ""]
            del generators[name]
            continue
        first = time.perf_counter() - start
        wanted = wanted or results
        pairs = list(zip(chain(*results), chain(*wanted), strict=True))
        same = sum(a == b for a, b in pairs) / len(pairs)
        rows[name] = [f"{first:.1f}", "", "", "", "", f"{same:.0%}"]
    taken: dict[str, list[float]] = {name: [] for name in generators}
    hosts: dict[str, list[float]] = {name: [] for name in generators}
    new = dict.fromkeys(generators, 0)
    run = dict.fromkeys(generators, 0)
    n_tokens = len(prompts) * args.tokens
    for _ in range(ROUNDS):
        for name, generate in generators.items():
            before, launched = counters.programs_compiled, counters.programs_run
            start, busy = time.perf_counter(), time.thread_time()
            for prompt in prompts:
                generate(prompt, args.tokens)
            hosts[name].append((time.thread_time() - busy) / n_tokens * 1e3)
            taken[name].append(n_tokens / (time.perf_counter() - start))
            new[name] += counters.programs_compiled - before
            run[name] += counters.programs_run - launched
    for name, speeds in taken.items():
        rows[name][1] = f"{statistics.median(speeds):.0f}"
        if "pjrt" in name:  # elsewhere the thread that calls computes as well
            rows[name][2] = f"{statistics.median(hosts[name]):.2f}"
            rows[name][3] = f"{run[name] / ROUNDS / n_tokens:.2f}"
            rows[name][4] = str(new[name])
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
