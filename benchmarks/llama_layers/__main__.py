"""Training steps of layers of Llama-2-7B's shape: bfloat16, checkpointed, AdamW; tokens a second, MFU.

    PJRT_DEVICE=GPU python benchmarks/llama_layers    # as many layers as the card has room for
    python benchmarks/llama_layers --tiny             # that the program works; what a CPU is given anyway
    python benchmarks/llama_layers --ahead h100       # our step compiled for a card that is not here

Each contestant is a process of its own, which has the device to itself; they take turns, round after
round, and keep compiled programs on disk between. MFU is the model's FLOPs in a second
(`flops_of_a_step`) over what the device's data sheet promises for dense products in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llama import TINY, Sizes, flops_of_a_step, layers_that_fit, model_of, step_of
from llama_ways import WAYS

HERE = Path(__file__).parent
TOLERANCE = 2e-2  # of the first losses, relative: sums of bfloat16 in another order

# FLOPs a second in dense products of bfloat16, by what the device calls itself: vendors' data sheets.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L4": 121e12,
    "TPU v5 lite": 197e12,
    "TPU v6 lite": 918e12,
    "TPU v4": 275e12,
    "TPU v5": 459e12,
}


@dataclass
class Result:
    """What was measured of a way: seconds of a step, by round; until the first step was done; losses."""

    way: str
    step_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped: str = ""


def ask(*question: str) -> dict[str, Any]:
    """What a process of its own answers; `RuntimeError` with its last words."""
    command = [sys.executable, str(HERE / "llama_contestant.py"), *question]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            return json.loads(line)
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [""]
    named = [line for line in lines if line[0].isalpha() and "Error" in line.partition(":")[0]]
    raise RuntimeError(f"status {done.returncode}: {(named or lines)[-1]}")


def race(sizes: Sizes, ways: Sequence[str], rounds: int, steps: int) -> list[Result]:
    results = [Result(way) for way in ways]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for result in results:
                if result.stopped:
                    continue
                print(f"{WAYS[result.way].title} ...", file=sys.stderr, flush=True)
                try:
                    found = ask(result.way, folder, str(steps), json.dumps(asdict(sizes)))
                except RuntimeError as error:
                    result.stopped = str(error)
                    continue
                result.step_s.append(statistics.median(found["seconds"]))
                result.first_s.append(found["first_s"])
                result.losses = found["losses"]
    return results


def peak_of(kind: str) -> float | None:
    """FLOPs a second that the device promises; the longest name that fits."""
    fitting = [name for name in PEAKS if name in kind]
    return PEAKS[max(fitting, key=len)] if fitting else None


def show(sizes: Sizes, kind: str, results: Sequence[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    peak, tokens = peak_of(kind), sizes.batch * sizes.length
    shape = f"width {sizes.width}, length {sizes.length}, batch {sizes.batch}"
    title = f"{sizes.layers} layers, {shape}, on {kind}"
    table = Table(title=title)
    for heading in ("", "step, ms", "tokens/s", "MFU", "start, s", "again, s", "loss"):
        table.add_column(heading, justify="right" if heading else "left")
    console = Console(width=120)
    for result in results:
        if not result.step_s:
            console.print(f"{WAYS[result.way].title}: {result.stopped}", markup=False)
            continue
        step_s = statistics.median(result.step_s)
        share = f"{flops_of_a_step(sizes) / step_s / peak:.1%}" if peak else ""
        again = f"{statistics.median(result.first_s[1:]):.1f}" if result.first_s[1:] else ""
        cells = (
            f"{step_s * 1e3:.1f}",
            f"{tokens / step_s:,.0f}",
            share,
            f"{result.first_s[0]:.1f}",
        )
        table.add_row(WAYS[result.way].title, *cells, again, f"{result.losses[0]:.4f}")
    console.print(table)


def ahead(target: str, sizes: Sizes) -> None:
    """Our step compiled for hardware that is not here: its memory, its FLOPs, its calls of cuDNN."""
    import torch

    import torch_pjrt

    step = step_of(model_of(sizes, "pjrt", filled=False))
    tokens = torch.empty(sizes.batch, sizes.length, dtype=torch.int64, device="meta")
    found = torch_pjrt.compile_for(target, step, tokens, tokens)
    text = found.text()
    calls = {name: text.count(f'custom_call_target="{name}"') for name in CALLS}
    print(found)
    print(
        json.dumps(
            {"model_flops": flops_of_a_step(sizes), "memory_bytes": found.memory_bytes, **calls}
        )
    )


CALLS = (
    "__cudnn$fmhaSoftmax",
    "__cudnn$fmhaSoftmaxBackward",
    "__cublas$lt$matmul",
    "__cublas$gemm",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Training steps of layers of Llama-2-7B's shape.")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--layers", type=int, help="as many as fit, 32 at most, unless given")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tiny", action="store_true", help="a model of a CPU's size")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="steps in a round")
    parser.add_argument(
        "--ahead", metavar="TARGET", help="compile our step for it (`h100`), run nothing"
    )
    parser.add_argument("--results", type=Path, help="a file for all numbers, as JSON")
    arguments = parser.parse_args()

    given = {n: v for n in ("layers", "batch") if (v := getattr(arguments, n)) is not None}
    if arguments.ahead:
        sizes = replace(TINY if arguments.tiny else Sizes(layers=2), **given)
        return ahead(arguments.ahead, sizes)
    there = ask("device")
    tiny = (
        arguments.tiny or os.environ.get("PJRT_DEVICE") == "CPU" or "cpu" in there["kind"].lower()
    )
    sizes = replace(TINY if tiny else Sizes(layers=0), **given)
    if not sizes.layers:
        sizes = replace(sizes, layers=layers_that_fit(there["memory_bytes"], sizes))
    results = race(sizes, arguments.ways, arguments.rounds, arguments.steps)
    show(sizes, there["kind"], results)
    if arguments.results:
        arguments.results.write_text(json.dumps([asdict(r) for r in results], indent=1))
    firsts = [r.losses[0] for r in results if r.losses]
    if any(abs(loss - firsts[0]) > TOLERANCE * firsts[0] for loss in firsts):
        sys.exit(f"The first losses differ by more than {TOLERANCE}: {firsts}.")


if __name__ == "__main__":
    main()
