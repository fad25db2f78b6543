"""Attention by the kernels package against the device's own rule and PyTorch's CPU flash attention.

    python benchmarks/attention.py [--lengths 1024 2048 ...] [--shape batch heads width] [--full]
    python benchmarks/attention.py --target h100 [--lengths ...] [--shape ...] [--full] [--mesh 2 2]

With `--target v5e:2x2` or `--target h100` nothing is timed: the memory that XLA says programs for that device
need beside what they take and give, in float32 and bfloat16, and whether a kernel is in them. With `--mesh`
it is that of a chip of a mesh (data, model), with batches and heads spread over it.

In turns, in one process: each repetition runs all three, and the least time of each counts. Forward, and
forward with backward. `between` is what XLA says that a program needs beside what it takes and gives.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import torch_pjrt
import torch_pjrt_cpu.attention
from torch_pjrt.plugin import aten
from torch_pjrt_kernels.attention import lowerings
from torch_pjrt_spmd import Mesh, mark_sharding

FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
BACKWARD = aten._scaled_dot_product_fused_attention_overrideable_backward.default
Step = Callable[[], Any]
# Custom calls of programs for TPUs, and of cuDNN's.
_KERNELS = ("tpu_custom_call", "cudnn")


def by_pytorch(arrays: list[np.ndarray], is_causal: bool) -> tuple[Step, Step]:
    """PyTorch's flash attention on the CPU."""
    query, key, value = (torch.from_numpy(x).requires_grad_() for x in arrays[:3])
    grad = torch.from_numpy(arrays[3])

    def forward() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(query, key, value, is_causal=is_causal)

    return forward, lambda: torch.autograd.grad(forward(), (query, key, value), grad)


def by_rules(of: Any, arrays: list[np.ndarray], is_causal: bool) -> tuple[Step, Step, list[int]]:
    """The rules of a table, as XLA programs, and what each needs between."""
    given = [jax.device_put(x) for x in arrays]
    zero = np.int64(0)

    def run(query: Any, key: Any, value: Any) -> Any:
        return of(FORWARD)(None, query, key, value, None, 0.0, is_causal)[:2]

    def both(query: Any, key: Any, value: Any, grad: Any) -> Any:
        out, logsumexp = run(query, key, value)
        n, m = query.shape[2], key.shape[2]
        none = (None, None, n, m, 0.0, is_causal, zero, zero)
        mask = (True, True, True, False)
        return out, of(BACKWARD)(grad, query, key, value, None, mask, out, logsumexp, *none)[:3]

    programs = [jax.jit(f).lower(*given[:n]).compile() for f, n in ((run, 3), (both, 4))]
    found = [p.memory_analysis() for p in programs]
    between = [0 if m is None else m.temp_size_in_bytes for m in found]
    first, second = programs
    return (
        lambda: jax.block_until_ready(first(*given[:3])),
        lambda: jax.block_until_ready(second(*given)),
        between,
    )


def of_cpu(op: Any) -> Any:
    return torch_pjrt_cpu.attention.table[op].rule


def of_kernels(op: Any) -> Any:
    return lambda *args: lowerings.table.over[op].rule(of_cpu(op), *args)


def least(steps: dict[str, Step], repetitions: int) -> dict[str, float]:
    """The least time of each, in seconds; they take turns."""
    found = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(repetitions):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            found[name] = min(found[name], time.perf_counter() - begun)
    return found


def spread(x: torch.Tensor, target: str, shape: list[int]) -> torch.Tensor:
    """A tensor of batches and heads marked for a mesh of the target's chips."""
    mesh = Mesh(tuple(shape), ("data", "model"), target=target)
    return mark_sharding(x, mesh, ("data", "model"))


def ahead(
    target: str, lengths: list[int], shape: list[int], is_causal: bool, mesh: list[int] | None
) -> None:
    """A line for each length and dtype, compiled for a device that is not here."""
    batch, heads, width = shape
    attend = partial(scaled_dot_product_attention, is_causal=is_causal)
    print("| length | dtype | forward, MB | both, MB | a kernel |")
    print("|--:|---|--:|--:|---|")
    for length in lengths:
        for dtype in (torch.float32, torch.bfloat16):
            given = [
                torch.empty(batch, heads, length, width, dtype=dtype, device="meta")
                for _ in range(3)
            ]
            if mesh:
                given = [spread(x, target, mesh) for x in given]

            def forward(*given: Any) -> Any:
                return attend(*given)

            def both(*given: Any) -> Any:
                leaves: list[Any] = [x.detach().requires_grad_() for x in given]
                y = attend(*leaves)
                return torch.autograd.grad(y.float().square().sum(), leaves)

            programs = [torch_pjrt.compile_for(target, step, *given) for step in (forward, both)]
            between = " | ".join(f"{p.temporary_bytes / 1e6:,.1f}" for p in programs)
            kernel = "yes" if any(k in programs[1].text() for k in _KERNELS) else "no"
            print(f"| {length:,} | {dtype} | {between} | {kernel} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--shape", type=int, nargs=3, default=[1, 4, 64])
    parser.add_argument("--full", action="store_true", help="not causal")
    parser.add_argument(
        "--most", type=int, default=16384, help="the device's own rule up to this length"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--target", help="compile for this device, as in v5e:2x2 or h100")
    parser.add_argument("--mesh", type=int, nargs=2, help="with --target: data x model")
    options = parser.parse_args()
    if options.target:
        causal = not options.full
        return ahead(options.target, options.lengths, options.shape, causal, options.mesh)
    torch.ones((), device="pjrt").item()  # starts the device, which rules ask for
    batch, heads, width = options.shape
    print(
        "| length | what | PyTorch flash, s | own rule, s | kernels, s | of flash | of own |"
        " between: own, MB | kernels, MB |"
    )
    print("|--:|---|--:|--:|--:|--:|--:|--:|--:|")
    with jax.enable_x64(True):
        for length in options.lengths:
            rng = np.random.default_rng(0)
            shape = (batch, heads, length, width)
            arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(4)]
            flash = by_pytorch(arrays, not options.full)
            new = by_rules(of_kernels, arrays, not options.full)
            old = by_rules(of_cpu, arrays, not options.full) if length <= options.most else None
            for i, what in enumerate(("forward", "both")):
                steps = {"flash": flash[i], "new": new[i], **({"old": old[i]} if old else {})}
                took = least(steps, options.repetitions)
                before = f"{took['old']:.3f}" if old else "-"
                of_old = f"{took['new'] / took['old']:.2f}" if old else "-"
                bytes_before = f"{old[2][i] / 1e6:,.0f}" if old else "-"
                print(
                    f"| {length:,} | {what} | {took['flash']:.3f} | {before} | {took['new']:.3f} | "
                    f"{took['new'] / took['flash']:.2f} | {of_old} | {bytes_before} | "
                    f"{new[2][i] / 1e6:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
