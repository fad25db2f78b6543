"""What parts of a training step cost between their products of matrices, forward and backward.

    python benchmarks/training_parts.py [--target v5e:2x2] [--rows N] [--width N]

With a target: the bytes that its program reads and writes, by XLA's analysis, and how many a kernel that
fuses everything would: each input and result once, forward and backward being one program. Else times on this
machine, against PyTorch on the CPU: in turns, the least counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torch_pjrt
from torch_pjrt_kernels import rotary as own_rotary_of_one

Tensor = torch.Tensor


def residual_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.rms_norm(total, weight.shape, weight, 1e-6), total


def residual_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return F.layer_norm(total, weight.shape, weight, bias), total


def swiglu(gate: Tensor, up: Tensor) -> tuple[Tensor]:
    return (F.silu(gate) * up,)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turned(q), turned(k)


def own_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return own_rotary_of_one(q, cos, sin), own_rotary_of_one(k, cos, sin)


def between_products(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A residual and a norm with the products before and behind them: what XLA can fuse with these."""

    def part(
        x: Tensor, first: Tensor, second: Tensor, residual: Tensor, *parameters: Tensor
    ) -> Any:
        y, total = norm(x @ first, residual, *parameters)
        return y @ second, total

    return part


def behind_products(turn: Callable[..., Any]) -> Callable[..., Any]:
    """Queries and keys, turned, with the products that make them."""

    def part(x: Tensor, to_query: Tensor, to_key: Tensor, cos: Tensor, sin: Tensor) -> Any:
        rows, width = x.shape
        made = ((x @ w).view(1, rows, width // 128, 128) for w in (to_query, to_key))
        return turn(*(y.transpose(1, 2) for y in made), cos, sin)

    return part


def sum_alone(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, total


def not_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return q, k


def gradients(part: Callable[..., Any], n: int, n_results: int) -> Callable[..., Any]:
    """Forward and backward: the results, and the gradients of the first `n` inputs. Others follow these."""

    def run(*given: Tensor) -> Any:
        leaves = [x.detach().requires_grad_() for x in given[:n]]
        inputs = given[n:]
        results = part(*leaves, *inputs[:-n_results])
        grads = list(inputs[-n_results:])
        return *results, *torch.autograd.grad(results, leaves, grads)

    return run


def cases(rows: int, width: int) -> dict[str, tuple[Any, int, list[tuple[int, ...]]]]:
    """What is called, how many inputs get gradients, and the shapes: inputs, then the results' gradients."""
    whole, heads = (rows, width), (1, width // 128, rows, 128)
    square, table = (width, width), heads[2:]
    norms = {
        "a sum alone": (sum_alone, 0),
        "rms_norm": (residual_rms_norm, 1),
        "layer_norm": (residual_layer_norm, 2),
    }
    turns = {"none": not_turned, "composed": rotary, "of the package": own_rotary}
    return {
        "residual + rms_norm": (residual_rms_norm, 3, [whole, whole, (width,), whole, whole]),
        "residual + layer_norm": (
            residual_layer_norm, 4, [whole, whole, (width,), (width,), whole, whole],
        ),
        "silu(gate) * up": (swiglu, 2, [whole, whole, whole]),
        "rotary": (rotary, 2, [heads, heads, table, table, heads, heads]),
        "rotary of the package": (own_rotary, 2, [heads, heads, table, table, heads, heads]),
        **{
            f"between products: {name}": (
                between_products(norm), 4 + n,
                [whole, square, square, whole, *[(width,)] * n, whole, whole],
            )
            for name, (norm, n) in norms.items()
        },
        **{
            f"behind products, rotary: {name}": (
                behind_products(turn), 3, [whole, square, square, table, table, heads, heads],
            )
            for name, turn in turns.items()
        },
    }  # fmt: skip


def adamw(*given: Tensor) -> list[Tensor]:
    """One step of PyTorch's fused AdamW on some parameters."""
    n = len(given) // 4
    parameters, grads, means, squares = (list(given[i * n : (i + 1) * n]) for i in range(4))
    steps = [torch.ones((), device=given[0].device) for _ in range(n)]
    torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
        parameters, grads, means, squares, [], steps, lr=1e-3, beta1=0.9, beta2=0.999,
        weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return [*parameters, *means, *squares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.target else torch.float32
    steps: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], torch.dtype]] = {
        name: (gradients(part, n, 1 if part is swiglu else 2), shapes, dtype)
        for name, (part, n, shapes) in cases(options.rows, options.width).items()
    }
    shapes = [(2 * options.width, options.width)]
    steps["fused AdamW"] = (adamw, shapes * 4, torch.float32)
    for name, (run, of_inputs, kind) in steps.items():
        if options.target:
            given = [torch.empty(s, dtype=kind, device="meta") for s in of_inputs]
            found = torch_pjrt.compile_for(options.target, run, *given)
            least = found.argument_bytes + found.output_bytes
            print(
                f"{name}: {(found.accessed_bytes or 0) / 1e6:,.0f} MB, at the least {least / 1e6:,.0f}, "
                f"{found.temporary_bytes / 1e6:,.1f} MB between",
                flush=True,
            )
            continue
        on_cpu = [torch.randn(s).abs() for s in of_inputs]
        best = {}
        for device in ("cpu", "pjrt"):
            given = [x.to(device) for x in on_cpu]
            best[device] = float("inf")
            for repetition in range(6):
                begun = time.perf_counter()
                held = run(*given)  # what nobody holds is not computed
                if device == "pjrt":
                    torch.accelerator.synchronize()
                if repetition:
                    best[device] = min(best[device], time.perf_counter() - begun)
                del held
        ratio = best["pjrt"] / best["cpu"]
        print(f"{name}: {best['pjrt'] * 1e3:.1f} ms, {ratio:.2f} of PyTorch's CPU", flush=True)


if __name__ == "__main__":
    main()
