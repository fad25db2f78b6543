"""What an operator costs the host on a tensor of one chip, on a spread one, and on PyTorch's DTensor.

    python benchmarks/operator_cost_sharded.py [--rounds 50]

One process with eight virtual chips. DTensor runs on CPU tensors as the first of eight processes of a fake
process group, which sends nothing: what is left is its own work for each call. An operator on 8x8 tensors
takes no time to compute. The unit is eager CPU's `torch.add` in the same run; stretches of calls take
turns, so that all see the same weather, and begin with calls that are not timed. The tape is run, empty
since no result is kept, between the stretches.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["PJRT_DEVICE"] = "CPU"

import torch
from operator_stretches import OPERATORS, stretch_us
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import distribute_tensor as distribute_dtensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from torch_pjrt_spmd import Mesh, distribute_tensor, redistribute

CALLS = 200  # in a stretch; far fewer than the tape holds before it is run
WARM = 20
PLACEMENTS = (Shard(0), Replicate())
NAMES = ("data", "model")


def ways() -> dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any]]]:
    """By name, how a tensor is made of one of the CPU, and one call that has copies made on all chips."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    theirs = init_device_mesh("cpu", (2, 4), mesh_dim_names=NAMES)
    ours = Mesh((2, 4), NAMES)
    whole = (Replicate(), Replicate())
    return {
        "eager CPU": (lambda x: x, lambda x: x.clone()),
        "pjrt, one chip": (lambda x: x.to("pjrt"), lambda x: x.clone()),
        "pjrt, eight chips": (
            lambda x: distribute_tensor(x, ours, PLACEMENTS),
            lambda x: redistribute(x, ours, whole),
        ),
        "DTensor, CPU": (
            lambda x: distribute_dtensor(x, theirs, PLACEMENTS),
            lambda x: x.redistribute(theirs, whole),
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The cost of one operator on tensors of many chips."
    )
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    known = ways()
    costs: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):  # the first one warms up
        first = turn % len(known)  # what comes after which is another in each round
        for name in (*OPERATORS, "redistribute"):
            for way in [*list(known)[first:], *list(known)[:first]]:
                make, move = known[way]
                spent = stretch_us(
                    *OPERATORS.get(name, (move, 1)),
                    partial(lambda make: make(torch.ones(8, 8)), make),
                    n_calls=CALLS,
                    n_warm=WARM,
                )
                costs.setdefault((name, way), []).extend([spent] if turn else [])
    unit = costs["add", "eager CPU"]
    table = Table(
        title="One operator on 8x8 tensors: µs (times eager CPU's add), medians of rounds"
    )
    for heading in ("", *known, "eight chips : one chip", "DTensor : eight chips"):
        table.add_column(heading, justify="right" if heading else "left")
    for name in (*OPERATORS, "redistribute"):
        cells = [
            f"{statistics.median(costs[name, way]):.2f} ({ratio(costs[name, way], unit):.1f})"
            for way in known
        ]
        one, eight, theirs = (costs[name, way] for way in list(known)[1:])
        table.add_row(name, *cells, f"{ratio(eight, one):.2f}", f"{ratio(theirs, eight):.1f}")
    Console(width=150).print(table)
    torch.distributed.destroy_process_group()


def ratio(some: list[float], others: list[float]) -> float:
    """The median over the rounds: both of a round have seen the same weather."""
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


if __name__ == "__main__":
    main()
