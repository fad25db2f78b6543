"""The HLO of products with weights of few bits: what reads the weight, and in which dtype it is multiplied.

    JAX_PLATFORMS=cpu python benchmarks/quant_hlo.py [--rows 1 32] [--targets cpu v5e:2x2 h100] [--whole]
        > benchmarks/results/quant-hlo.md

Of a layer of 4096 x 4096 in bfloat16 on a TPU and a GPU, compiled ahead of time, and in float32 on the CPU.
Printed are products, and what converts, copies, slices or adds up arrays of at least a quarter of the weight;
with `--whole`, all of the program.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from typing import Any

import jax
import torch
from hbm_reads import hbm_reads
from quant import CONFIGS, SIZE

import torch_pjrt
from torch_pjrt_quant import export, quantize_

LARGE = SIZE * SIZE // 4
_OPERATION = re.compile(r"^\s+(ROOT )?%([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_HIDDEN = re.compile(
    r", (metadata|backend_config|sharding|frontend_attributes|operand_layout_constraints)=\{.*"
)
PRODUCTS = ("dot", "convolution", "while", "custom-call")
LARGE_ONES = ("convert", "copy", "copy-start", "dynamic-slice", "gather", "multiply", "slice-start")


def shown(text: str) -> list[str]:
    """The lines that say how the weight is read and multiplied, by computations."""
    found: list[str] = []
    of_now: list[str] = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY")) and line.rstrip().endswith("{"):
            of_now = [line.split(" (")[0].removeprefix("%")]
        elif line.startswith("}"):
            found += of_now if len(of_now) > 1 else []
            of_now = []
        elif of_now and (parts := _OPERATION.match(line)) and _matters(parts):
            plain = re.sub(r"\{[^{}]*\}", "", _HIDDEN.sub("", line)).strip()
            of_now.append("  " + re.sub(r"[%]|ROOT ", "", plain)[:140])
    return found


def _matters(parts: re.Match[str]) -> bool:
    _, _, shape, op, rest = parts.groups()
    if op in PRODUCTS:
        return True
    arrays = re.findall(r"\[([\d,]+)\]", shape)
    is_large = any(math.prod(map(int, a.split(","))) >= LARGE for a in arrays)
    return (is_large and op in LARGE_ONES) or (op in ("reduce", "fusion") and "argument" in rest)


def program(name: str, target: str, rows: int) -> str:
    torch.manual_seed(0)
    linear = torch.nn.Linear(SIZE, SIZE, bias=False)
    model: Any = torch.nn.Sequential(linear)
    if name in CONFIGS:
        quantize_(model, CONFIGS[name])
    if target == "cpu":
        made = export(model, (torch.empty(rows, SIZE),), platforms=["cpu"]).jax()
        with jax.enable_x64(True):
            specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in made.in_avals]
            return jax.jit(made.call).lower(*specs).compile().as_text() or ""
    model.to("pjrt", torch.bfloat16)
    x = torch.empty(rows, SIZE, dtype=torch.bfloat16, device="meta")
    return torch_pjrt.compile_for(target, model, x).text()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--targets", nargs="*", default=["cpu", "v5e:2x2", "h100"])
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    torch.zeros(1, device="pjrt")  # starts the device
    print("# The HLO of products with small weights\n")
    print(
        "Made by `python benchmarks/quant_hlo.py`; [the layers](../../docs/quantization.md). A layer of"
    )
    print(
        f"{SIZE} x {SIZE}, in bfloat16 for a TPU and a GPU (compiled ahead, not run), in float32 on the CPU."
    )
    print(
        "Lines are products, and operations on arrays of at least a quarter of the weight; a fusion is"
    )
    print("one pass, in which nothing between is in memory.\n")
    for target in args.targets:
        for rows in args.rows:
            print(f"\n## {target}, {rows} row{'s' * (rows > 1)}")
            for name in ["not quantized", *CONFIGS]:
                text = program(name, target, rows)
                read = "" if target == "cpu" else f": {hbm_reads(text) / 1e6:.1f} MB read of HBM"
                print(f"\n{name}{read}\n\n```text")
                print(text if args.whole else "\n".join(shown(text)))
                print("```", flush=True)


if __name__ == "__main__":
    main()
