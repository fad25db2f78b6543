"""The ways to launch a compiled program with many arguments, and what each costs the host.

    python benchmarks/launch.py --arguments 500

The program adds one to each of its arguments and takes their memory, like parameters of an optimizer. A
launch is timed until it returns; XLA's CPU device runs small programs within it, so the work itself is small.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

Launch = Callable[[Sequence[Any]], Sequence[Any]]


def ways_for(function: Callable[..., Any], arguments: Sequence[Any]) -> dict[str, Launch]:
    """Each way: a function of the arguments, which it takes, that gives the results."""
    jitted = jax.jit(function, donate_argnums=tuple(range(len(arguments))), keep_unused=True)
    compiled = jitted.lower(*arguments).compile()
    loaded: Any = compiled.runtime_executable()
    layer: Any = compiled._executable  # type: ignore[attr-defined]
    avals, shardings = layer.out_avals, layer._out_shardings

    def by_loaded(arrays: Sequence[Any]) -> Sequence[Any]:
        results = loaded.execute_sharded(list(arrays))
        singles = results.disassemble_into_single_device_arrays()
        return [
            jax.make_array_from_single_device_arrays(aval.shape, sharding, parts)
            for aval, sharding, parts in zip(avals, shardings, singles, strict=True)
        ]

    return {
        "jax.jit's own call": lambda arrays: jitted(*arrays),
        "the compiled program's call": lambda arrays: compiled(*arrays),
        "the same in x64 mode, as ours": lambda arrays: in_x64(compiled, arrays),
        "its unchecked call": lambda arrays: layer.unsafe_call(*arrays),
        "the runtime's execute_sharded": by_loaded,
    }


def in_x64(compiled: Any, arrays: Sequence[Any]) -> Sequence[Any]:
    with jax.enable_x64(True):
        return compiled(*arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ways to launch a program.")
    parser.add_argument("--arguments", type=int, default=500)
    parser.add_argument("--elements", type=int, default=16, help="of each argument")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=10, help="of each way in a round")
    options = parser.parse_args()

    def function(*arrays: Any) -> Sequence[Any]:
        return [a + 1 for a in arrays]

    fresh = [jnp.zeros(options.elements, np.float32) for _ in range(options.arguments)]
    ways = ways_for(function, fresh)
    seen: dict[str, list[float]] = {name: [] for name in ways}
    arrays: Sequence[Any] = fresh
    for _ in range(options.rounds):
        for name, launch in ways.items():
            jax.block_until_ready(launch_once := list(launch(arrays)))
            arrays = launch_once
            for _ in range(options.calls):
                start = time.perf_counter()
                arrays = launch(arrays)
                seen[name].append(time.perf_counter() - start)
                jax.block_until_ready(list(arrays))
    expected = options.rounds * len(ways) * (options.calls + 1)
    assert all(float(a[0]) == expected for a in arrays), "a way lost a launch"
    table = Table(title=f"Launching a program of {options.arguments} arguments, as many results")
    for heading in ("", "ms", "to the first"):
        table.add_column(heading, justify="right" if heading else "left")
    first = statistics.median(next(iter(seen.values())))
    for name, seconds in seen.items():
        median = statistics.median(seconds)
        table.add_row(name, f"{median * 1e3:.3f}", f"{median / first:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
