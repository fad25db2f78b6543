"""A process of two by two whose tapes have the collectives of a row and a column; prints what each case gave.

Ranks do the same, or not: then programs are each group's own. Every case says how many programs its steps
were, and how often this rank proposed to the others in vain. With an argument: of a captured step alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import torch_pjrt
from torch_pjrt.extend import counters
from torch_pjrt_spmd.distributed import grids

dist.init_process_group("cpu:gloo,pjrt:pjrt")
RANK = dist.get_rank()
MADE = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (2, 3), (0, 2), (1, 3))}
ROW, COLUMN = (group for ranks, group in MADE.items() if RANK in ranks)
SUM = [float(0 + 1 + 2 + 3)] * 3


def own() -> torch.Tensor:
    """The rank's number, three times; behind more operators than a collective waits for."""
    x = torch.full((3,), float(RANK), device="pjrt")
    for _ in range(6):
        x = x * 1
    return x


def step(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x, group=ROW)
    x = x + 1 - 1
    dist.all_reduce(x, group=COLUMN)
    return x * 2


def counted(n: int, run: Callable[[], Any]) -> dict[str, Any]:
    """What n steps gave, the last one; how many programs each was, and how many rounds ended in vain."""
    programs, value = [], None
    before, begun = withdrawn(), time.monotonic()
    for _ in range(n):
        ran = counters.programs_run
        value = run()
        programs.append(counters.programs_run - ran)
    return {
        "value": value,
        "programs": programs,
        "in vain": withdrawn() - before,
        "why": [rounds.why for rounds in grids._known.rounds.values()],
        "seconds": time.monotonic() - begun,
    }


def withdrawn() -> int:
    return sum(rounds.withdrawn for rounds in grids._known.rounds.values())


def alike() -> Any:
    return counted(4, lambda: step(own()).tolist())


def of_all_as_well() -> Any:
    """The loss of all ranks is a line along both axes."""

    def run() -> Any:
        x = step(own())
        dist.all_reduce(x)
        parts = torch.empty(12, device="pjrt")
        dist.all_gather_into_tensor(parts, x + RANK)
        return (parts / 2).tolist()

    return counted(3, run)


def captured() -> Any:
    before = counters.replays
    run = torch_pjrt.capture(step)
    found = counted(8, lambda: run(own()).tolist())
    return {**found, "replays": counters.replays - before}


def a_number_of_its_own() -> Any:
    return counted(3, lambda: step(own() * (RANK + 2.5) / (RANK + 2.5)).tolist())


def an_evaluation_of_one_row() -> Any:
    """The others are waited for, not left."""

    def run() -> Any:
        if RANK in (0, 1):
            x = own()
            dist.all_reduce(x, group=ROW)
            assert x.tolist() == [1.0] * 3
            time.sleep(0.3)
        return step(own()).tolist()

    return counted(3, run)


def a_read_between(n: int = 24) -> Any:
    """One rank reads what its row has given: it waits for its row, and does not come to the others."""

    def run() -> Any:
        x = own()
        dist.all_reduce(x, group=ROW)
        if RANK == 0:
            x.tolist()
        dist.all_reduce(x, group=COLUMN)
        return (x * 2).tolist()

    return counted(n, run)


def a_read_behind() -> Any:
    """One rank reads before the others do what all have recorded: all beginnings are alike."""

    def run() -> Any:
        x = own()
        dist.all_reduce(x, group=ROW)
        x = x * 2
        dist.all_reduce(x, group=COLUMN)
        if RANK == 0:
            x.tolist()
        for _ in range(6):
            x = x * 1
        dist.all_reduce(x, dist.ReduceOp.MAX, group=ROW)
        y = x + 1 - 1
        dist.all_reduce(y, dist.ReduceOp.MAX, group=COLUMN)
        return y.tolist()

    return counted(4, run)


def rows_that_go_different_ways() -> Any:
    """As stages do: one row has more collectives than the other, and the columns are used by all."""

    def run() -> Any:
        x = own()
        for _ in range(1 + RANK // 2):
            dist.all_reduce(x, dist.ReduceOp.MAX, group=ROW)
            x = x + 1
        dist.all_reduce(x, dist.ReduceOp.MAX, group=COLUMN)
        return x.tolist()

    return counted(6, run)


def one_waits_by_the_host() -> Any:
    """Rank 3 waits for rank 0's result by gloo, and would not come to the others before."""

    def run() -> Any:
        x = own()
        lines = ((0, 1), (0, 2), (2, 3), (1, 3))
        if RANK == 3:
            dist.recv(torch.zeros(1), 0)
        for ranks in lines:
            if RANK in ranks:
                dist.all_reduce(x, dist.ReduceOp.MAX, group=MADE[ranks])
                x = x * 1
        found = x.tolist()
        if RANK == 0:
            dist.send(torch.zeros(1), 3)
        return found

    return counted(1, run)


def one_reads_and_the_others_wait_for_it_by_the_host() -> Any:
    """A thread of theirs comes to what it waits for."""

    def run() -> Any:
        x = step(own())
        said = torch.zeros(3)
        if RANK == 0:
            said += x.cpu()
        dist.broadcast(said, 0)
        return said.tolist()

    return counted(1, run)


def one_stays_away() -> Any:
    begun = time.monotonic()
    try:
        if RANK == 3:
            time.sleep(20)  # longer than the limit
            return "away"
        return step(own()).tolist()
    except Exception as error:
        return [str(error).partition("\n")[0], time.monotonic() - begun]


def a_step_that_one_does_not_replay() -> Any:
    run = torch_pjrt.capture(step)
    for _ in range(5):
        run(own())
    begun = time.monotonic()
    try:
        if RANK == 0:
            x = own()
            dist.all_reduce(x, dist.ReduceOp.MIN, group=ROW)
            return x.tolist()
        return run(own()).tolist()
    except Exception as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - begun]


CASES: tuple[Callable[[], Any], ...] = (
    alike, of_all_as_well, captured, a_number_of_its_own, an_evaluation_of_one_row, a_read_between,
    a_read_behind, rows_that_go_different_ways, one_waits_by_the_host,
    one_reads_and_the_others_wait_for_it_by_the_host, one_stays_away,
)  # fmt: skip

if __name__ == "__main__":
    for case in CASES if len(sys.argv) == 1 else [a_step_that_one_does_not_replay]:
        try:
            found = case()
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        print(json.dumps({"case": case.__name__, "found": found}), flush=True)
    dist.destroy_process_group()
