"""Layers with weights of few bits: bytes, error, time on CPU, and what compilers make of them ahead of time.

    python benchmarks/quant.py [--ahead v5e:2x2 h100] > benchmarks/results/quant.md

Times are of a layer of 4096 x 4096, the least of some calls, taken in turns with the float32 layer; memory
between is what a program holds beyond its arguments. With `--ahead` (libtpu installed) the same for a TPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from hbm_reads import hbm_reads

import torch_pjrt
from torch_pjrt_quant import Float8, Int4, Int8, Nf4, quantize_

SIZE = 4096
ROWS = (1, 2, 4, 8, 16, 64)
CONFIGS: dict[str, Any] = {
    "int8": Int8(),
    "int8 dynamic": Int8(dynamic=True),
    "int4, groups of 128": Int4(128),
    "nf4, groups of 64": Nf4(64),
    "float8": Float8(),
    "float8 dynamic": Float8(dynamic=True),
}


def layers() -> dict[str, Any]:
    torch.manual_seed(0)
    linear = torch.nn.Linear(SIZE, SIZE, bias=False)
    made = {"float32": torch.nn.Sequential(linear)}
    made |= {n: quantize_(torch.nn.Sequential(linear), c) for n, c in CONFIGS.items()}
    return made


def stored(model: torch.nn.Module) -> int:
    return sum(t.nbytes for t in model.state_dict().values())


def measured() -> None:
    made = layers()
    x = torch.randn(64, SIZE)
    with torch.no_grad():
        wanted = made["float32"](x)
        errors = {n: float((m(x) - wanted).norm() / wanted.norm()) for n, m in made.items()}
    for model in made.values():
        model.to("pjrt")
    calls = {name: _call(model) for name, model in made.items()}
    calls["float32, in JAX"] = _in_jax(made["float32"])
    times: dict[str, dict[int, float]] = {name: {} for name in calls}
    for rows in ROWS:
        given = torch.randn(rows, SIZE, device="pjrt")
        for call in calls.values():
            call(given)
        for _ in range(21):
            for name, call in calls.items():
                before = time.perf_counter()
                call(given)
                taken = time.perf_counter() - before
                times[name][rows] = min(taken, times[name].get(rows, taken))
    print("| weight | bytes | error | " + " | ".join(f"{r} rows, ms" for r in ROWS) + " |")
    print("|---|--:|--:|" + "--:|" * len(ROWS))
    made["float32, in JAX"] = made["float32"]
    errors["float32, in JAX"] = 0.0
    for name, model in sorted(made.items(), key=lambda x: "float32" not in x[0]):
        taken = " | ".join(f"{1e3 * times[name][r]:.1f}" for r in ROWS)
        share = stored(model) / stored(made["float32"])
        print(f"| {name} | {share:.3f} | {errors[name]:.4f} | {taken} |")


def _call(model: torch.nn.Sequential) -> Callable[[torch.Tensor], None]:
    compiled = torch.compile(model[0], backend="pjrt", dynamic=False)

    def call(x: torch.Tensor) -> None:
        with torch.no_grad():
            result = compiled(x)  # what nobody holds is not computed
            torch_pjrt.sync()
        torch.pjrt.synchronize()  # pyright: ignore[reportAttributeAccessIssue]
        del result

    return call


def _in_jax(model: Any) -> Callable[[torch.Tensor], None]:
    """The same product without PyTorch: `x` by the weight as it lies, rows by rows."""
    weight = torch_pjrt.to_jax(model[0].weight.detach())
    product = jax.jit(lambda x, w: jax.lax.dot_general(x, w, (((1,), (1,)), ((), ()))))

    def call(x: torch.Tensor) -> None:
        product(torch_pjrt.to_jax(x), weight).block_until_ready()

    return call


def memory() -> None:
    """Of XLA's program for this machine's CPU."""
    from torch_pjrt_quant import rules

    print("\n| product of 1 row | arguments, MiB | between, MiB |\n|---|--:|--:|")
    numbers, packed = ((SIZE, SIZE), jnp.int8), ((SIZE, SIZE // 2), jnp.uint8)
    scale, groups = ((SIZE,), jnp.float32), ((SIZE, SIZE // 128), jnp.float32)
    cases: dict[str, tuple[Any, list[Any]]] = {
        "int8": (rules.linear_int8, [numbers, scale]),
        "int8 dynamic": (rules.linear_int8_dynamic, [numbers, scale]),
        "int4": (rules.linear_int4, [packed, groups, groups]),
        "nf4": (rules.linear_nf4, [packed, groups]),
        "float8": (rules.linear_float8, [((SIZE, SIZE), jnp.float8_e4m3fn), scale]),
        "int8, made wide and multiplied": (
            lambda x, w, s: x @ (w.astype(x.dtype) * s[:, None]).T,
            [numbers, scale],
        ),
    }
    for name, (rule, shapes) in cases.items():
        given = [jax.ShapeDtypeStruct(*s) for s in (((1, SIZE), jnp.float32), *shapes)]
        made: Any = jax.jit(rule).lower(*given).compile().memory_analysis()
        sizes = made.argument_size_in_bytes, made.temp_size_in_bytes
        print(f"| {name} | {sizes[0] / 2**20:.1f} | {sizes[1] / 2**20:.1f} |")


def ahead(target: str) -> None:
    print(
        f"\n| for {target}, 1 row, bfloat16 | arguments of bfloat16's | read of HBM | between, MiB |"
    )
    print("|---|--:|--:|--:|")
    wide = wide_reads = 0.0
    for name, model in layers().items():
        model.to("pjrt", torch.bfloat16)
        x = torch.empty(1, SIZE, dtype=torch.bfloat16, device="meta")
        made = torch_pjrt.compile_for(target, model, x)
        reads = hbm_reads(made.text())
        wide, wide_reads = wide or made.argument_bytes, wide_reads or reads
        called = "bfloat16" if name == "float32" else name
        shares = f"{made.argument_bytes / wide:.3f} | {reads / wide_reads:.3f}"
        print(f"| {called} | {shares} | {made.temporary_bytes / 2**20:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ahead", nargs="*", default=[])
    args = parser.parse_args()
    print("# Layers with weights of few bits\n")
    print(
        "Made by `python benchmarks/quant.py`; [the layers](../../docs/quantization.md). A layer of"
    )
    print(
        f"{SIZE} x {SIZE}; bytes as a share of float32's; error relative to float32, of random numbers.\n"
    )
    measured()
    memory()
    for target in args.ahead:
        ahead(target)


if __name__ == "__main__":
    main()
