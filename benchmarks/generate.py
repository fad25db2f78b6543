"""Tokens a second of Transformers' own `generate` on `pjrt`, beside eager PyTorch on the CPU, in turns.

    python benchmarks/generate.py [--layers 8] [--width 512] [--tokens 48] [--rounds 3] [--batch 1]

A Llama with random weights, float32, greedy; prompts of other lengths in each round. Columns: the first call,
which compiles; of the median round, tokens a second and the time of a token; programs, reads and compilations
of the last round; whether the tokens are the CPU's. `generation/` has loops that are written by hand.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
import warnings
from typing import Any

os.environ.setdefault("USE_TORCH_XLA", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def made(layers: int, width: int) -> Any:
    """On the CPU."""
    import torch
    import transformers  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    configuration = transformers.LlamaConfig(
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(width // 256, 1),
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.LlamaForCausalLM(configuration).eval()


def generated(net: Any, n: int, batch: int, tokens: int, device: str) -> tuple[Any, float]:
    """The new tokens of a prompt of n, on the CPU, and the seconds that they took."""
    import torch

    ids = torch.randint(1, 8192, (batch, n), generator=torch.Generator().manual_seed(n))
    given = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
    begun = time.perf_counter()
    found = net.generate(**given, max_new_tokens=tokens, do_sample=False).cpu()
    return found[:, n:], time.perf_counter() - begun


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")

    from torch_pjrt.extend import counters

    on_cpu = made(given.layers, given.width)
    nets = {"cpu": on_cpu, "pjrt": copy.deepcopy(on_cpu).to("pjrt")}
    longest = 40  # the static cache has a size for it from the first call on
    first = {d: generated(nets[d], longest, given.batch, given.tokens, d)[1] for d in nets}
    seconds: dict[str, list[float]] = {device: [] for device in nets}
    cost, same = (0, 0, 0), True
    for round_ in range(given.rounds):
        found = {}
        for device, net in nets.items():
            before = counters.programs_run, counters.downloads, counters.programs_compiled
            n = longest - 2 * (round_ % 4) - 1
            found[device], took = generated(net, n, given.batch, given.tokens, device)
            seconds[device].append(took)
            if device == "pjrt":
                after = counters.programs_run, counters.downloads, counters.programs_compiled
                cost = after[0] - before[0], after[1] - before[1], after[2] - before[2]
        same = same and bool((found["cpu"] == found["pjrt"]).all())
    print(
        "| device | first call, s | tokens/s | a token, ms | programs, reads | compiled | tokens |"
    )
    print("|---|--:|--:|--:|--:|--:|---|")
    for device in nets:
        took = statistics.median(seconds[device])
        costs = f"{cost[0]}, {cost[1]} | {cost[2]}" if device == "pjrt" else "- | -"
        said = "-" if device == "cpu" else "the CPU's" if same else "others"
        print(
            f"| {device} | {first[device]:.1f} | {given.batch * given.tokens / took:.0f} "
            f"| {1000 * took / given.tokens:.1f} | {costs} | {said} |"
        )


if __name__ == "__main__":
    main()
