"""`flex_attention` in blocks against PyTorch's composition with all scores, forward and backward.

    python benchmarks/flex_attention.py [--length N] [--heads N] [--target v5e:2x2]

In turns, in one process; the least time of each counts. With a target: what each needs there beside what it
takes and gives, by XLA's analysis. `sdpa` is `scaled_dot_product_attention`, causal, in blocks too.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt

HOP: Any = importlib.import_module("torch._higher_order_ops.flex_attention")
KINDS: dict[str, Callable[..., Any]] = {
    "causal": lambda b, h, i, j: i >= j,
    "window of 512": lambda b, h, i, j: (i >= j) & (i - j < 512),
    "documents of 1024": lambda b, h, i, j: i // 1024 == j // 1024,
}


def step(mask: Any, score: Any = None) -> Callable[..., Any]:
    def run(*given: torch.Tensor) -> Any:
        q, k, v = (x.detach().requires_grad_() for x in given)
        flex: Any = flex_attention
        y = flex(q, k, v, block_mask=mask, score_mod=score)
        return torch.autograd.grad(y.sum(), (q, k, v))

    return run


def causal(*given: torch.Tensor) -> Any:
    q, k, v = (x.detach().requires_grad_() for x in given)
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.autograd.grad(y.sum(), (q, k, v))


def with_all_scores(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same by PyTorch's composition."""
    ops = (HOP.flex_attention, HOP.flex_attention_backward)

    def called(*given: torch.Tensor) -> Any:
        kernels = [op.py_kernels.pop(DispatchKey.PrivateUse1) for op in ops]
        for op in ops:
            op._dispatch_cache.clear()
        try:
            return run(*given)
        finally:
            for op, kernel in zip(ops, kernels, strict=True):
                op._dispatch_cache.clear()
                op.py_kernels[DispatchKey.PrivateUse1] = kernel

    return called


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--target")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    n, shape = options.length, (1, options.heads, options.length, 64)
    steps: dict[str, Callable[..., Any]] = {"sdpa": causal}
    given = [torch.randn(shape, device="pjrt") for _ in range(3)]
    for name, rule in KINDS.items():
        mask = create_block_mask(rule, None, None, n, n, "pjrt")
        steps[name] = step(mask)
        if name == "causal":
            steps["causal, all scores"] = with_all_scores(steps[name])
    steps["a score changed"] = step(None, lambda s, b, h, i, j: s - (i - j).abs() * 0.01)
    torch.accelerator.synchronize()
    if options.target:
        given = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    for name, run in steps.items():
        if options.target:
            found = torch_pjrt.compile_for(options.target, run, *given)
            print(f"{name}: {found.temporary_bytes / 1e6:,.1f} MB between", flush=True)
            continue
        least = float("inf")
        for repetition in range(options.repetitions + 1):
            begun = time.perf_counter()
            run(*given)[0].sum().item()
            if repetition:
                least = min(least, time.perf_counter() - begun)
        print(f"{name}: {least:.3f} s", flush=True)


if __name__ == "__main__":
    main()
