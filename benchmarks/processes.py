"""A step of DDP on the device against one by gloo on CPU tensors, in the same processes, in turns.

    python benchmarks/processes.py                   with 1, 2 and 4 processes of this host
    python benchmarks/processes.py --processes 2 --rounds 5

The model is a small GPT, the optimizer AdamW. Losses are read after each stretch. Prints a table in Markdown:
for each number of processes the losses, the time of a step until it is done, the time until Python has it
back, and the programs of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH, ROWS = 128, 2, 4, 256, 64, 4
STEPS = 5  # of a stretch
LIMIT_S = 900


@dataclass(frozen=True)
class Measured:
    """Of one way to train: the losses of stretches, and their medians: ms and programs of a step."""

    losses: list[float]
    step_ms: float
    host_ms: float
    programs: float


def gpt() -> Any:
    """Token and place embeddings, pre-norm blocks, and a head."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.mlp = nn.Sequential(
                nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.qkv(self.before(x)).chunk(3, -1)
            q, k, v = (p.unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in parts)
            heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(heads.transpose(1, 2).flatten(2))
            return x + self.mlp(self.after(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            places = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.blocks(self.tokens(tokens) + self.places(places))
            return self.head(self.norm(x))

    torch.manual_seed(0)
    return Model()


class Way:
    """A model that is trained on one device, a stretch of steps at a time."""

    def __init__(self, device: str) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        self.model = DistributedDataParallel(gpt().to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        numbers = torch.Generator().manual_seed(dist.get_rank())
        batch = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=numbers).to(device)
        self.x, self.y = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
        self.losses: list[float] = []
        self.step_ms: list[float] = []
        self.host_ms: list[float] = []
        self.programs: list[float] = []

    def stretch(self) -> None:
        import torch.distributed as dist
        from torch.nn.functional import cross_entropy

        from torch_pjrt.extend import counters

        dist.barrier()
        programs, begun = counters.programs_run, time.perf_counter()
        loss: Any = None
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(self.x).flatten(0, 1), self.y.flatten())
            loss.backward()
            self.optimizer.step()
        returned = time.perf_counter()
        self.losses.append(loss.item())
        self.step_ms.append((time.perf_counter() - begun) * 1e3 / STEPS)
        self.host_ms.append((returned - begun) * 1e3 / STEPS)
        self.programs.append((counters.programs_run - programs) / STEPS)

    def measured(self) -> Measured:
        """Without the first two stretches, in which programs are compiled."""
        rest = (self.step_ms[2:], self.host_ms[2:], self.programs[2:])
        return Measured(self.losses, *map(statistics.median, rest))


def worker(rounds: int) -> None:
    """One process: prints what each way took."""
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    ways = {"gloo": Way("cpu"), "pjrt": Way("pjrt")}
    for _ in range(rounds + 2):
        for way in ways.values():
            way.stretch()
    print(json.dumps({name: asdict(way.measured()) for name, way in ways.items()}), flush=True)
    dist.destroy_process_group()


def run(n: int, rounds: int) -> dict[str, Measured]:
    """What rank 0 of n processes measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(n),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--worker", "--rounds", str(rounds)]
    started = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        out, _ = started[0].communicate(timeout=LIMIT_S)
    finally:
        for process in started:
            process.kill()
            process.wait()
    said = json.loads(out.splitlines()[-1])
    return {name: Measured(**values) for name, values in said.items()}


def table(found: dict[int, dict[str, Measured]]) -> str:
    lines = [
        "| processes | way | first and last loss | step, ms | of these Python, ms | programs a step |",
        "|--:|---|---|--:|--:|--:|",
    ]
    for n, ways in found.items():
        for name, way in ways.items():
            losses = f"{way.losses[0]:.6f}, {way.losses[-1]:.6f}"
            programs = f"{way.programs:g}" if name == "pjrt" else ""
            lines.append(
                f"| {n} | {name} | {losses} | {way.step_ms:.1f} | {way.host_ms:.1f} | {programs} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.rounds)
        return
    found = {n: run(n, options.rounds) for n in options.processes}
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.0f} at the end.\n")
    print(table(found))
    for n, ways in found.items():
        pairs = zip(ways["gloo"].losses, ways["pjrt"].losses, strict=True)
        apart = max(abs(a - b) / abs(a) for a, b in pairs)
        print(f"\nLosses of {n} differ by {apart:.1e} of them at most.")


if __name__ == "__main__":
    main()
