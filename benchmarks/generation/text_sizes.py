"""The Llama-shaped model that generates text: its sizes, its prompts, and how long they may get."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BUCKETS = (16, 64)
"""Lengths that prompts are padded to, on the left."""

PROMPT_LENGTHS = (9, 12, 16, 40)


@dataclass(frozen=True)
class Sizes:
    """What decides a model's shape, and two numbers of its arithmetic.

    heads is a multiple of kv_heads: consecutive heads share keys and values. `inner` is the width between the
    matrices of a feed-forward layer. `epsilon` is that of the norms, `base` that of the rotary angles.
    """

    layers: int = 8
    width: int = 256
    inner: int = 704
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 1024
    epsilon: float = 1e-6
    base: float = 10000.0


def bucket_of(prompt: torch.Tensor) -> int:
    """The length that a prompt, (1, length), is padded to."""
    return next(bucket for bucket in BUCKETS if bucket >= prompt.shape[1])


def padded(prompt: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A prompt with zeros on its left, and how many there are."""
    pad = bucket_of(prompt) - prompt.shape[1]
    return torch.nn.functional.pad(prompt, (pad, 0)), pad


def room_for(n_tokens: int) -> int:
    """Places of a cache that takes any prompt and so many tokens."""
    return BUCKETS[-1] + n_tokens


def prompts_of(sizes: Sizes) -> list[torch.Tensor]:
    """Random tokens, the same in each process: int64, (1, length)."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(1, sizes.vocabulary, (1, length), generator=generator)
        for length in PROMPT_LENGTHS
    ]
