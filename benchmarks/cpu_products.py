"""Linear layers on the CPU by number of rows, beside JAX's own `x @ weight.T` and PyTorch's.

    python benchmarks/cpu_products.py

Medians of turns: each of the three computes in each turn. No gradients.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt

TURNS = 9
SIZES = [(512, 512), (2048, 2048), (2048, 8192), (8192, 2048), (4096, 4096)]


def ways(n_rows: int, n: int, columns: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    layer = torch.nn.Linear(n, columns, bias=False, dtype=dtype)
    x = torch.randn(n_rows, n, dtype=dtype)
    ours, there = torch.nn.Linear(n, columns, bias=False, dtype=dtype).to("pjrt"), x.to("pjrt")
    kind = {torch.float32: jnp.float32, torch.bfloat16: jnp.bfloat16}[dtype]
    weight = jnp.asarray(np.random.randn(columns, n)).astype(kind)
    rows = jnp.asarray(x.float().numpy()).astype(kind)
    product = jax.jit(lambda x, weight: x @ weight.T)

    def ours_is_done() -> None:
        y = ours(there)  # lives until it is computed
        torch_pjrt.sync()
        torch.pjrt.synchronize()  # type: ignore[attr-defined]
        del y

    return {
        "PyTorch": lambda: layer(x),
        "JAX": lambda: product(rows, weight).block_until_ready(),
        "pjrt": ours_is_done,
    }


def milliseconds(computed: Callable[[], object]) -> float:
    begun = time.perf_counter()
    computed()
    return 1000 * (time.perf_counter() - begun)


@torch.no_grad()
def main() -> None:
    table = Table(title="x @ weight.T, milliseconds")
    for heading in ("dtype", "rows", "weight", "PyTorch", "JAX", "pjrt", "pjrt / JAX"):
        table.add_column(heading, justify="right")
    for dtype in (torch.float32, torch.bfloat16):
        for n, columns in SIZES:
            for n_rows in (1, 4, 64):
                computed = ways(n_rows, n, columns, dtype)
                for way in computed.values():
                    way()
                turns = [
                    {name: milliseconds(way) for name, way in computed.items()}
                    for _ in range(TURNS)
                ]
                of = {name: statistics.median(turn[name] for turn in turns) for name in computed}
                cells = [f"{of[name]:.2f}" for name in ("PyTorch", "JAX", "pjrt")]
                ratio = f"{of['pjrt'] / of['JAX']:.2f}"
                name = str(dtype).removeprefix("torch.")
                table.add_row(name, str(n_rows), f"{columns} x {n}", *cells, ratio)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
