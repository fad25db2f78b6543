"""What a call of a compiled graph costs the host, beside a hand-written `jax.jit` call of as many arrays.

    python benchmarks/compiled_step.py [N_TENSORS ...]

Three kinds of graphs of N tensors, all overhead: `read` adds them all up, as a model reads its weights;
`update` writes to all of them, as an optimizer does (JAX donates its arguments); `new` makes N tensors. Calls
wait for nothing, and the device has nothing else to do. What is counted is the CPU time of the calling thread
until the call returns and what the last call gave is freed; ways take turns, and medians of a round are
compared. `graph` is the compiled graph alone, with the launch of its program; `AOTAutograd` adds what PyTorch
does around it, `torch.compile` Dynamo's guards as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt
from torch_pjrt_dynamo import backend
from torch_pjrt_dynamo.compiled import CompiledGraph

ROUNDS, CALLS = 20, 10
Call = Callable[[], Any]
Tensors = list[torch.Tensor]


def read(tensors: Tensors) -> Tensors:
    return [torch.stack(tensors).sum(0)]


def update(tensors: Tensors) -> Tensors:
    for x in tensors:
        x.add_(1)
    return [tensors[0].sum()]


def new(tensors: Tensors) -> Tensors:
    return [x + 1 for x in tensors]


def jax_read(arrays: list[jax.Array]) -> Call:
    f = jax.jit(lambda arrays: [jnp.stack(arrays).sum(0)])
    return lambda: f(arrays)


def jax_update(arrays: list[jax.Array]) -> Call:
    def step(arrays: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        arrays = [x + 1 for x in arrays]
        return arrays, arrays[0].sum()

    f = jax.jit(step, donate_argnums=0)
    held = [arrays]

    def call() -> list[jax.Array]:
        held[0], result = f(held[0])
        return [result]

    return call


def jax_new(arrays: list[jax.Array]) -> Call:
    f = jax.jit(lambda arrays: [x + 1 for x in arrays])
    return lambda: f(arrays)


KINDS = {"read": (read, jax_read), "update": (update, jax_update), "new": (new, jax_new)}


def ways(kind: str, n: int) -> dict[str, Call]:
    """What is called, by name; each launches one program of `n` arrays."""
    function, by_jax = KINDS[kind]
    tensors = [torch.full((4,), float(i)).to("pjrt") for i in range(n)]
    graphs: list[CompiledGraph] = []
    runtimes: list[Callable[..., Any]] = []

    def spying(module: Any, inputs: Any) -> Any:
        runtimes.append(backend.pjrt(module, inputs))
        return runtimes[-1]

    made = CompiledGraph.__init__

    def noted(self: CompiledGraph, module: torch.fx.GraphModule, name: str, **options: Any) -> None:
        made(self, module, name, **options)
        graphs.append(self)

    with patch.object(CompiledGraph, "__init__", noted):
        compiled = torch.compile(function, backend=spying)
        compiled(tensors)
    torch_pjrt.sync()

    def synced(call: Callable[[], Any]) -> Call:
        def run() -> Any:
            result = call()
            torch_pjrt.sync()
            return result

        return run

    return {
        "jax.jit": by_jax([jnp.full((4,), float(i)) for i in range(n)]),
        "pjrt: graph": synced(lambda: graphs[0](list(tensors))),
        "pjrt: AOTAutograd": synced(lambda: runtimes[0](*tensors)),
        "pjrt: torch.compile": synced(lambda: compiled(tensors)),
        "pjrt: lazy": synced(lambda: function(tensors)),
    }


def milliseconds(call: Call) -> float:
    """Until the call returns and its last results are freed; the median of a few."""
    taken = []
    results = call()
    for _ in range(CALLS):
        start = time.thread_time()
        results = call()
        taken.append(time.thread_time() - start)
        jnp.zeros(()).block_until_ready()
        float(results[-1].reshape(-1)[0])
    return statistics.median(taken) * 1e3


def row_of(kind: str, n: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of each way, and how often jax.jit's they are."""
    calls = ways(kind, n)
    for call in calls.values():
        for _ in range(4):
            call()
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, call in calls.items():
                rounds[name].append(milliseconds(call))
    first = rounds["jax.jit"]
    return {
        name: (
            statistics.median(taken),
            statistics.median(a / b for a, b in zip(taken, first, strict=True)),
        )
        for name, taken in rounds.items()
    }


def main() -> None:
    sizes = [int(a) for a in sys.argv[1:]] or [10, 100, 450]
    table = Table(title="CPU time of a call, ms (and as a multiple of jax.jit's)")
    table.add_column("")
    rows: dict[str, list[str]] = {}
    for kind in KINDS:
        for n in sizes:
            table.add_column(f"{kind} {n}", justify="right")
            for name, (taken, ratio) in row_of(kind, n).items():
                rows.setdefault(name, []).append(f"{taken:.3f} ({ratio:.2f})")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
