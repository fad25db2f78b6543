"""The GPT of the demo on virtual chips: losses, bytes on a chip, collectives, and what the host does.

    python benchmarks/many_chips.py [--steps 50] [--chips 1 8 64 256]

Each row is a process of its own. Virtual chips share the machine's cores: steps do not get faster by more
of them, and how long one takes says nothing. What counts is that losses agree, what a chip holds, which
collectives there are, and that the host's part of a step does not grow with the number of chips.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BATCH = 8  # so many chips at most share it; the others of a larger mesh have copies
N_TIMED = 10


def data_parallel(model: Any, n_chips: int) -> Any:
    from torch_pjrt_spmd import Mesh

    return Mesh((min(n_chips, BATCH), max(1, n_chips // BATCH)), ("data", "more"))


def tensor_parallel(model: Any, n_chips: int) -> Any:
    from torch_pjrt_spmd import Mesh, mark_sharding

    mesh = Mesh((2, n_chips // 2), ("data", "model"))
    for block in model.blocks:
        for by_column in (block.attention.inputs, block.up):
            mark_sharding(by_column.weight, mesh, ("model", None))
            mark_sharding(by_column.bias, mesh, ("model",))
        for by_row in (block.attention.output, block.down):
            mark_sharding(by_row.weight, mesh, (None, "model"))
    return mesh


def sequence_parallel(model: Any, n_chips: int) -> Any:
    from torch_pjrt_spmd import Mesh, mark_sharding

    mesh = Mesh((2, 2, n_chips // 4), ("data", "sequence", "model"))
    for block in model.blocks:
        for by_column in (block.attention.inputs, block.up):
            mark_sharding(by_column.weight, mesh, ("model", None))
            mark_sharding(by_column.bias, mesh, ("model",))
        for by_row in (block.attention.output, block.down):
            mark_sharding(by_row.weight, mesh, (None, "model"))
        block.register_forward_hook(
            lambda block, args, y: mark_sharding(y, mesh, ("data", "sequence", None))
        )
    return mesh


def fully_sharded(model: Any, n_chips: int) -> Any:
    from torch_pjrt_spmd import Mesh, mark_sharding

    mesh = Mesh((n_chips,), ("data",))
    for p in model.parameters():
        if p.shape[0] % n_chips == 0:
            mark_sharding(p, mesh, ("data",))
    return mesh


WAYS: dict[str, Callable[[Any, int], Any]] = {
    "data": data_parallel,
    "data x tensor": tensor_parallel,
    "data x sequence x tensor": sequence_parallel,
    "fully sharded": fully_sharded,
}


def run(way: str, n_chips: int, steps: int) -> dict[str, Any]:
    """Train in this process, and say what was seen."""
    sys.path.insert(0, str(EXAMPLES))
    import torch

    import torch_pjrt
    import train_gpt
    from torch_pjrt.extend import add_program_hooks, counters, each_collective
    from torch_pjrt_spmd import distribute_tensor, local_shards, use_mesh

    texts: list[str] = []
    torch_pjrt.config.cache_dir = None
    model = train_gpt.build_model().to("pjrt")
    mesh = WAYS[way](model, n_chips) if n_chips > 1 else None
    use_mesh(mesh)
    host = train_gpt.make_batches(train_gpt.read_text()[0])
    batches: Any = host
    if mesh is not None:
        batches = (tuple(distribute_tensor(t, mesh, ("data",)) for t in batch) for batch in host)
    begun = train_gpt.train(model, batches, steps, "pjrt")
    times: list[float] = []
    launches: list[float] = []
    losses: list[Any] = []
    with add_program_hooks(after_compile=lambda program: texts.append(program.compiled.as_text())):
        for _ in range(steps):
            torch.accelerator.synchronize()
            start, launched = time.perf_counter(), counters.launch_s
            losses.append(next(begun))
            times.append(time.perf_counter() - start)
            launches.append(counters.launch_s - launched)
    found = Counter(name for name, _, _ in each_collective(texts[-1]))
    parameters = list(model.parameters())
    return {
        "losses": [loss.item() for loss in losses],
        "parameters": sum(local_shards(p)[0].data.nbytes for p in parameters),
        "allocated": torch.accelerator.memory_allocated(),
        "collectives": dict(found),
        "compiled": counters.programs_compiled,
        "compile_s": counters.lower_s + counters.compile_s,
        # What JAX takes to launch grows with the virtual chips, which it starts one by one.
        "launch_ms": 1e3 * statistics.median(launches[-N_TIMED:]),
        "other_host_ms": 1e3
        * statistics.median(t - of for t, of in list(zip(times, launches, strict=True))[-N_TIMED:]),
    }


def in_a_process(way: str, n_chips: int, steps: int) -> dict[str, Any]:
    flags = f"--xla_force_host_platform_device_count={n_chips}"
    done = subprocess.run(
        [sys.executable, __file__, "--child", way, "--chips", str(n_chips), "--steps", str(steps)],
        env={**os.environ, "XLA_FLAGS": flags, "PJRT_DEVICE": "CPU"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--chips", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=list(WAYS), help="with 8 chips")
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(run(given.child, given.chips[0], given.steps)))
        return
    one: list[float] = []
    for n_chips in given.chips:
        for way in given.ways if n_chips == 8 else ["data"]:
            found = in_a_process(way, n_chips, given.steps)
            losses = found.pop("losses")
            one = one or losses
            apart = max(abs(a - b) / b for a, b in zip(losses, one, strict=True))
            print(
                f"{n_chips} chips, {way}: losses apart by {apart:.1e} at most; {found}", flush=True
            )


if __name__ == "__main__":
    main()
