"""What XLA's compile options do for training steps: seconds to compile, a step's milliseconds, memory.

    python benchmarks/xla_options.py                              # all models, all rows
    python benchmarks/xla_options.py gpt --rows default ynn-off   # some
    python benchmarks/xla_options.py gpt --option xla_cpu_use_xnnpack=true

The program of one captured step is lowered once and compiled with each row of options (`None` takes a default
of the device plugin away). Steps are taken in turns, row after row, with donated weights fed back,
so that all rows see the same weather on a shared machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent / "training_steps"))

import jax
import torch
from rich.console import Console
from rich.table import Table

import torch_pjrt
from models import WORKLOADS, Workload
from torch_pjrt.client.client import Client, client
from torch_pjrt.compile.programs import Program

Options = Mapping[str, Any]
_YNN = "xla_cpu_experimental_ynn_fusion_type"


def _ynn(*types: str) -> str:
    return ",".join(f"LIBRARY_FUSION_TYPE_{each}" for each in types)


#   row                    options over the device plugin's
ROWS: dict[str, Options] = {
    "default": {},
    "no defaults of ours": {},  # the device's are taken away
    "ynn off": {_YNN: ""},
    "ynn: dots only": {_YNN: _ynn("INDIVIDUAL_DOT")},
    "ynn: dots and what is fused with them": {_YNN: _ynn("DOT")},
    "ynn: dots, elementwise": {_YNN: _ynn("DOT", "ELTWISE")},
    "ynn: dots, reductions": {_YNN: _ynn("DOT", "REDUCE")},
    "ynn: dots, elementwise, reductions": {_YNN: _ynn("DOT", "ELTWISE", "REDUCE")},
    "ynn: everything": {
        _YNN: _ynn("INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION", "DOT", "ELTWISE", "REDUCE")
    },
    "xnnpack": {"xla_cpu_use_xnnpack": True},
    "onednn": {"xla_cpu_use_onednn": True},
    "vectors of 512 bits": {"xla_cpu_prefer_vector_width": 512},
    "vectors of 128 bits": {"xla_cpu_prefer_vector_width": 128},
    "one module": {"xla_cpu_parallel_codegen_split_count": 1},
    "4 modules": {"xla_cpu_parallel_codegen_split_count": 4},
    "concurrency scheduler": {"xla_cpu_enable_concurrency_optimized_scheduler": True},
    "no concurrency scheduler": {"xla_cpu_enable_concurrency_optimized_scheduler": False},
    "memory scheduler": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
    "no eigen threads": {"xla_cpu_multi_thread_eigen": False},
    "no expensive passes": {"xla_llvm_disable_expensive_passes": True},
    "optimization level 1": {"xla_backend_optimization_level": 1},
    "optimization level 2": {"xla_backend_optimization_level": 2},
    "fast min and max": {"xla_cpu_enable_fast_min_max": True},
    "fast math": {"xla_cpu_enable_fast_math": True},
    "tiling propagation": {"xla_cpu_experimental_enable_tiling_propagation": True},
    "region analysis for copies": {"xla_cpu_copy_insertion_use_region_analysis": True},
    "old fusion emitters": {"xla_cpu_use_fusion_emitters": False},
}


@dataclass
class Step:
    """The program of a step: as it was lowered, with arguments; which of those results take the place of."""

    lowered: Any
    arguments: list[Any]
    donated: Sequence[int]


@dataclass
class Row:
    """A row of options at work, by round. memory_mb is what lies between inputs and outputs.

    cpu_ms  of all threads: on a machine that others use, it says more than the clock does.
    """

    name: str
    compiled: Any
    arguments: list[Any]
    compile_s: float
    memory_mb: float
    step_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def take(self, steps: int, donated: Sequence[int]) -> None:
        """Take steps, and note the least that one took."""
        taken, worked = [], []
        for _ in range(steps):
            start, before = time.perf_counter(), time.process_time()
            with jax.enable_x64(True):
                results = self.compiled(*self.arguments)
            jax.block_until_ready(results)
            taken.append(time.perf_counter() - start)
            worked.append(time.process_time() - before)
            for position, result in zip(donated, results, strict=False):
                self.arguments[position] = result
        self.step_ms.append(min(taken) * 1e3)
        self.cpu_ms.append(min(worked) * 1e3)


def step_of(workload: Workload) -> Step:
    """The program that a captured step of the workload launches in full swing."""
    torch.manual_seed(0)
    model = workload.build().to("pjrt").train()
    how = {"capturable": True} if workload.adam else {}
    optimizer = workload.optimizer(model.parameters(), **how)
    batches = workload.batches()
    lowereds: list[Any] = []
    launched: list[tuple[Program, list[Any]]] = []
    compile_lowered, launch_on = Client.compile_lowered, Program._launch_on

    def noting(self: Client, lowered: Any) -> Any:
        lowereds.append(lowered)
        return compile_lowered(self, lowered)

    def watching(self: Program, arrays: list[Any], numbers: Sequence[Any], *rest: Any) -> Any:
        launched.append((self, [*(x.copy() for x in arrays), *numbers]))
        del launched[:-1]
        return launch_on(self, arrays, numbers, *rest)

    with (
        mock.patch.object(Client, "compile_lowered", noting),
        mock.patch.object(Program, "_launch_on", watching),
    ):
        for _ in range(4):
            inputs, targets = next(batches)
            if not inputs.is_floating_point():
                inputs = inputs.long()
            optimizer.zero_grad()
            loss = workload.loss(model(inputs.to("pjrt")), targets.long().to("pjrt"))
            loss.backward()
            optimizer.step()
            torch_pjrt.sync()
    program, arguments = launched[-1]
    return Step(lowereds[-1], arguments, [-n - 1 for n in program.donated])


def compiled(step: Step, name: str, options: Options) -> Row | str:
    """The step compiled with a row of options; why not, if XLA refuses."""
    ours = {} if name == "no defaults of ours" else client().device.compile_options()
    # An option at its default: without any, JAX gives the program that it compiled before.
    merged = {"xla_backend_optimization_level": 3, **ours, **options}
    chosen = {k: v for k, v in merged.items() if v is not None}
    start = time.perf_counter()
    try:
        program = step.lowered.compile(compiler_options=chosen)
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0]
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    return Row(
        name,
        program,
        [x.copy() for x in step.arguments],
        seconds,
        memory.temp_size_in_bytes / 1e6 if memory else 0.0,
    )


def measured(
    step: Step, rows: Mapping[str, Options], rounds: int, steps: int
) -> tuple[list[Row], dict[str, str]]:
    """All rows in turns; those that XLA refused, and why."""
    running, refused = [], {}
    for name, options in rows.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        row = compiled(step, name, options)
        if isinstance(row, str):
            refused[name] = row
        else:
            row.take(2, step.donated)
            row.step_ms.clear()
            row.cpu_ms.clear()
            running.append(row)
    for _ in range(rounds):
        for row in running:
            row.take(steps, step.donated)
    return running, refused


def show(title: str, rows: Sequence[Row], refused: Mapping[str, str]) -> None:
    """The table, as Markdown."""
    base = rows[0]
    table = Table(
        "options", "compile, s", "step, ms", "CPU, ms", "to the first", "memory, MB", title=title
    )
    for row in rows:
        ratios = [mine / its for mine, its in zip(row.cpu_ms, base.cpu_ms, strict=True)]
        table.add_row(
            row.name,
            f"{row.compile_s:.1f}",
            f"{min(row.step_ms):.1f}",
            f"{min(row.cpu_ms):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{row.memory_mb:.1f}",
        )
    console = Console(width=120)
    console.print(table)
    for name, why in refused.items():
        console.print(f"{name}: {why}", markup=False)


def value(text: str) -> Any:
    """An option's value as XLA takes it: true, an integer, or text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What XLA's compile options do for training steps."
    )
    parser.add_argument("workloads", nargs="*", metavar="MODEL", help=", ".join(WORKLOADS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=5, help="steps in a round, of which the best counts"
    )
    arguments = parser.parse_args()
    torch_pjrt.config.cache_dir = None
    torch_pjrt.config.roll_layers = "off"  # arguments of programs are then arrays, one by one
    rows: dict[str, Options] = {name: ROWS[name] for name in arguments.rows}
    for text in arguments.option:
        pairs = [pair.partition("=") for pair in text.split(";")]
        rows[text] = {name: value(given) for name, _, given in pairs}
    for name in arguments.workloads or WORKLOADS:
        step = step_of(WORKLOADS[name])
        show(WORKLOADS[name].title, *measured(step, rows, arguments.rounds, arguments.steps))


if __name__ == "__main__":
    main()
