"""The loss behind a linear layer: PyTorch's two functions against `linear_cross_entropy`, with gradients.

    python benchmarks/linear_cross_entropy.py [--tokens N] [--width N] [--classes N] [--target v5e:2x2]

In turns, in one process; the least time of each counts. With a target: what each needs there, by XLA's
analysis.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, linear

import torch_pjrt
from torch_pjrt_kernels import linear_cross_entropy

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(linear(hidden, weight).float(), target)


def step(loss: Loss) -> Callable[..., Any]:
    """The gradients of hidden states and weight."""

    def run(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Any:
        h, w = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
        return torch.autograd.grad(loss(h, w, target), (h, w))

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=32_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--target")
    options = parser.parse_args()
    steps = {"plain": step(plain), "linear_cross_entropy": step(linear_cross_entropy)}
    sizes = (options.tokens, options.width), (options.classes, options.width)
    if options.target:
        halves = [torch.empty(s, dtype=torch.bfloat16, device="meta") for s in sizes]
        target = torch.empty(options.tokens, dtype=torch.int64, device="meta")
        for name, run in steps.items():
            found = torch_pjrt.compile_for(options.target, run, *halves, target)
            print(f"{name}: {found.temporary_bytes / 1e6:,.1f} MB between")
        return
    given = [torch.randn(s, device="pjrt") for s in sizes]
    target = torch.randint(options.classes, (options.tokens,)).to("pjrt")
    least = dict.fromkeys(steps, float("inf"))
    for repetition in range(options.repetitions + 1):
        for name, run in steps.items():
            begun = time.perf_counter()
            found = run(*given, target)
            found[0].sum().item()
            if repetition:
                least[name] = min(least[name], time.perf_counter() - begun)
    for name, took in least.items():
        print(f"{name}: {took:.3f} s, {took / least['plain']:.2f} of plain")


if __name__ == "__main__":
    main()
