"""What libtpu makes of convolutions of int8 and float8: operands, results, and its own estimate of cycles.

    python benchmarks/quant_convolutions.py > benchmarks/results/quant-convolutions.md

Needs libtpu, and no TPU: programs are compiled ahead of time for a v5e.
"""

from __future__ import annotations

import os
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

#   images, channels in and out, height and width, size of the kernel
SHAPES = [
    (1, 64, 64, 56, 3),
    (1, 256, 256, 56, 3),
    (8, 64, 64, 56, 3),
    (8, 256, 256, 56, 3),
    (16, 64, 64, 56, 3),
    (24, 64, 64, 28, 3),
    (32, 256, 256, 28, 3),
    (128, 256, 256, 14, 3),
    (128, 512, 512, 7, 3),
    (256, 64, 64, 28, 3),
    (8, 256, 64, 56, 1),
    (32, 256, 256, 28, 1),
    (128, 1024, 256, 14, 1),
]
#   numbers, what their products are added up in
KINDS: dict[str, tuple[Any, Any]] = {
    "bf16": (jnp.bfloat16, jnp.float32),
    "s8": (jnp.int8, jnp.int32),
    "f8e4m3fn": (jnp.float8_e4m3fn, jnp.float32),
}


def program(kind: str, shape: tuple[int, int, int, int, int], chip: Any) -> str:
    """The optimized HLO of a convolution."""
    images, channels, outputs, size, kernel = shape
    dtype, wide = KINDS[kind]
    around = [(kernel // 2, kernel // 2)] * 2

    def convolution(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (1, 1), around, preferred_element_type=wide)

    sharding = SingleDeviceSharding(chip)
    shapes = (images, channels, size, size), (outputs, channels, kernel, kernel)
    given = [jax.ShapeDtypeStruct(s, dtype, sharding=sharding) for s in shapes]
    return jax.jit(convolution).lower(*given).compile().as_text() or ""


def dtypes(text: str) -> str:
    """Of the operands and the result of the convolution."""
    line = next(a for a in text.splitlines() if re.search(r"= \S+ convolution\(", a))
    body = text[: text.index(line)].rpartition("\n\n")[2]
    names = re.findall(r"%([\w.-]+)", line.partition(" convolution(")[2].partition(")")[0])
    kinds = [re.search(rf"%{re.escape(name)}(?: =|:) (\w+)\[", body) for name in names]
    result = re.search(r"= (\w+)\[", line)
    assert result and all(kinds)
    return " x ".join(k[1] for k in kinds if k) + " = " + result[1]


def cycles(text: str) -> int:
    """By libtpu's estimate, without the copies of arguments and results into other layouts."""
    lines = [line for line in text.splitlines() if " copy(" not in line]
    return sum(int(n) for line in lines for n in re.findall(r'"estimated_cycles":"(\d+)"', line))


def main() -> None:
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    chip = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]
    print("# Convolutions of 8 bits on a TPU\n")
    print("Made by `python benchmarks/quant_convolutions.py` for")
    print(
        "[quantization](../../docs/quantization.md). Compiled for a v5e by libtpu; nothing was run."
    )
    print(
        "Cycles are those that libtpu estimates for a program, without copies into other layouts.\n"
    )
    print("| images, channels, outputs, size, kernel | bfloat16 | int8 | of bfloat16's | float8 |")
    print("|---|--:|--:|--:|--:|")
    seen: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for shape in SHAPES:
        took = {}
        for kind in KINDS:
            text = program(kind, shape, chip)
            seen[kind].add(dtypes(text))
            took[kind] = cycles(text)
        wide, small, float8 = took.values()
        print(
            f"| {', '.join(map(str, shape))} | {wide} | {small} | {small / wide:.2f} | {float8} |",
            flush=True,
        )
    print("\n| numbers | operands and result in the program |\n|---|---|")
    for kind, found in seen.items():
        print(f"| {kind} | {', '.join(sorted(found))} |")


if __name__ == "__main__":
    main()
