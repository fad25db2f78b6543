"""A GPT's training step on `pjrt` against hand-written JAX, eager PyTorch and `torch.compile`.

    python benchmarks/gpt_step.py
    python benchmarks/gpt_step.py --narrow      # 12 layers of width 32: all overhead

Each contestant is a process of its own. It is started cold, alone, and timed until its first
step is done; then it waits. Rounds of steps follow, the contestants in turns, so that all see the
same weather on a shared machine. All start from the same weights and see the same batches, and
the first losses must agree.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "examples"))

LAYERS, WIDTH, HEADS, BATCH, LENGTH, VOCABULARY = 6, 256, 8, 8, 128, 512
LEARNING_RATE = 3e-4
NARROW = {"LAYERS": 12, "WIDTH": 32, "HEADS": 4, "BATCH": 2, "LENGTH": 16, "VOCABULARY": 64}
COMPARED_STEPS = 5
TOLERANCE = 1e-3  # relative; sums run in another order in each contestant

CONTESTANTS = {
    "jax": "JAX, hand-written",
    "pjrt": 'PyTorch, "pjrt"',
    "again": 'PyTorch, "pjrt", a later process',
    "captured": 'PyTorch, "pjrt", captured',
    "eager": "PyTorch, eager CPU",
    "inductor": "PyTorch, torch.compile",
}
Step = Callable[[], Any]
"""Takes a training step and gives its loss, which `float` reads."""


# --- one contestant, in its own process -----------------------------------------------------------


def jax_step(weights: dict[str, np.ndarray], batches: list[np.ndarray]) -> Step:
    import gpt_in_jax as gpt

    params = gpt.params_from_torch(weights)
    state = gpt.start(params)
    turn = iter_forever(batches)

    def step() -> Any:
        nonlocal params, state
        batch = next(turn)
        tokens, targets = batch[:, :-1], batch[:, 1:]
        params, state, loss = gpt.train_step(params, state, tokens, targets, LAYERS, HEADS)
        return loss

    return step


def torch_step(
    weights: dict[str, np.ndarray], batches: list[np.ndarray], device: str, how: str
) -> Step:
    import torch
    import torch.nn.functional as F

    from train_gpt import GPT

    model = GPT(LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, dropout=0.0)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    model.to(device)
    captured = how == "captured"
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, capturable=captured)
    turn = iter_forever(batches)

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    loss_of = torch.compile(loss_of) if how == "inductor" else loss_of

    def train(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if captured:
        import torch_pjrt

        train = torch_pjrt.capture(train)

    def step() -> Any:
        batch = torch.from_numpy(next(turn)).long()
        return train(batch[:, :-1].to(device), batch[:, 1:].to(device))

    return step


def iter_forever(batches: list[np.ndarray]) -> Any:
    while True:
        yield from batches


def run_contestant(name: str, data: Path) -> None:
    """Answer each number of steps on the input by their losses and seconds, as a line of JSON."""
    weights, batches = read_data(data)
    if name == "jax":
        step = jax_step(weights, batches)
    else:
        device = "cpu" if name in ("eager", "inductor") else "pjrt"
        step = torch_step(weights, batches, device, name)
    for line in sys.stdin:
        start = time.perf_counter()
        losses = [step() for _ in range(int(line))]
        float(losses[-1])  # until it is done
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "losses": [float(loss) for loss in losses]}
        print(json.dumps(answer), flush=True)


# --- all of them, in turns ------------------------------------------------------------------------


@dataclass
class Contestant:
    """A running process and what was measured of it."""

    name: str
    process: subprocess.Popen[str]
    first_step_s: float = 0.0
    first_call_s: float = 0.0
    losses: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    def take(self, steps: int) -> dict[str, Any]:
        """Let it take steps: its losses and the seconds they took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.name} stopped: {self.process.wait()}")


def start_cold(name: str, data: Path) -> Contestant:
    """Start one and wait for its first step; caches on disk are empty."""
    command = [sys.executable, __file__, "--contestant", name, "--data", str(data)]
    command += ["--narrow"] if NARROW["LAYERS"] == LAYERS else []
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(data / "inductor"),
        "TORCH_PJRT_CACHE_DIR": str(data / "pjrt"),
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    contestant = Contestant(name, process)
    first = contestant.take(1)
    contestant.first_step_s = time.perf_counter() - start
    contestant.first_call_s = first["seconds"]
    rest = contestant.take(COMPARED_STEPS - 1)
    contestant.losses = first["losses"] + rest["losses"]
    return contestant


def write_data(data: Path) -> None:
    """The weights that all start from, and batches of real text."""
    import torch

    from train_gpt import GPT, make_batches, read_text

    torch.manual_seed(0)
    model = GPT(LAYERS, WIDTH, HEADS, LENGTH, VOCABULARY, dropout=0.0)
    np.savez(data / "weights.npz", **{n: p.numpy() for n, p in model.state_dict().items()})
    batches = make_batches(read_text()[0])
    pairs = [next(batches) for _ in range(16)]
    windows = [torch.cat([tokens, targets[:, -1:]], dim=1) for tokens, targets in pairs]
    windows = [w[:BATCH, : LENGTH + 1] % VOCABULARY for w in windows]
    assert windows[0].shape == (BATCH, LENGTH + 1)
    np.save(data / "batches.npy", torch.stack(windows).int().numpy())


def read_data(data: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """What `write_data` wrote: the weights by name, and the batches."""
    with np.load(data / "weights.npz") as file:
        weights = dict(file)
    return weights, list(np.load(data / "batches.npy"))


def measure(names: list[str], rounds: int, steps: int, data: Path) -> list[Contestant]:
    contestants = []
    for name in names:
        print(f"starting {CONTESTANTS[name]} ...", file=sys.stderr, flush=True)
        contestants.append(start_cold(name, data))
    try:
        for contestant in contestants:
            contestant.take(steps)
        for _ in range(rounds):
            for contestant in contestants:
                contestant.step_ms.append(contestant.take(steps)["seconds"] / steps * 1e3)
    finally:
        for contestant in contestants:
            contestant.process.kill()
            contestant.process.wait()
    return contestants


def ratio(contestant: Contestant, base: Contestant) -> float:
    """The median, over rounds, of how many times longer a step takes."""
    return statistics.median(
        mine / its for mine, its in zip(contestant.step_ms, base.step_ms, strict=True)
    )


def disagreement(contestant: Contestant, base: Contestant) -> float:
    """The largest relative difference of the first losses."""
    return max(
        abs(mine - its) / its for mine, its in zip(contestant.losses, base.losses, strict=True)
    )


def show(contestants: list[Contestant], skipped: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    base = contestants[0]
    table = Table(title=title())
    for heading in (
        "",
        "process to first step, s",
        "first step, s",
        "step, ms",
        f"to {base.name}",
        "losses differ",
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for c in contestants:
        table.add_row(
            CONTESTANTS[c.name],
            f"{c.first_step_s:.1f}",
            f"{c.first_call_s:.2f}",
            f"{statistics.median(c.step_ms):.1f}",
            f"{ratio(c, base):.3f}",
            f"{disagreement(c, base):.1e}",
        )
    for name, why in skipped.items():
        table.add_row(CONTESTANTS[name], "skipped", why, "", "", "")
    Console(width=120).print(table)


def title() -> str:
    return (
        f"A GPT's training step: {LAYERS} layers, width {WIDTH}, {HEADS} heads, batch {BATCH}, "
        f"length {LENGTH}, vocabulary {VOCABULARY}, AdamW; {os.cpu_count()} cores"
    )


def draw(contestants: list[Contestant], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    labels = [CONTESTANTS[c.name] for c in contestants]
    colors = ["tab:orange" if c.name == "pjrt" else "tab:gray" for c in contestants]
    panels = {
        "step, ms": ([statistics.median(c.step_ms) for c in contestants], "%.1f"),
        "start of the process to the end of the first step, s": (
            [c.first_step_s for c in contestants],
            "%.1f",
        ),
    }
    figure, axes = plt.subplots(1, 2, figsize=(11, 2.6), sharey=True, layout="constrained")
    for ax, (heading, (values, form)) in zip(axes, panels.items(), strict=True):
        ax.bar_label(ax.barh(labels, values, color=colors), fmt=form, padding=3)
        ax.set_title(heading, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.margins(x=0.12)
    axes[0].invert_yaxis()
    figure.suptitle(title(), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="The training step of a GPT, in several ways.")
    parser.add_argument("--narrow", action="store_true", help="a deep, narrow model")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8, help="steps in a round")
    parser.add_argument("--only", nargs="*", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--picture", type=Path, default=HERE / "results" / "gpt_step.svg")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.narrow:
        globals().update(NARROW)
        arguments.picture = arguments.picture.with_stem("gpt_step_narrow")
    if arguments.contestant:
        run_contestant(arguments.contestant, arguments.data)
        return

    skipped = {}
    if "inductor" in arguments.only and not any(map(shutil.which, ("g++", "clang++", "c++"))):
        skipped["inductor"] = "no C++ compiler"
    names = [name for name in arguments.only if name not in skipped]
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        contestants = measure(names, arguments.rounds, arguments.steps, Path(folder))
    show(contestants, skipped)
    draw(contestants, arguments.picture)
    print(f"picture: {os.path.relpath(arguments.picture)}")
    if any(disagreement(c, contestants[0]) > TOLERANCE for c in contestants):
        sys.exit(f"The losses of the first {COMPARED_STEPS} steps differ by more than {TOLERANCE}.")


if __name__ == "__main__":
    main()
