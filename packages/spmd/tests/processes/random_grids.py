"""Random programs with collectives of rows, columns and all of 2 x 2 processes, on the device and by gloo.

What ranks do depends on the rank here and there: they read, use numbers of their own, and do with one row or
column what they do not with the others. Data are whole numbers, so that every order of adding gives the same.
Arguments: from which number on, how many; `alike`: nothing depends on the rank.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

import torch
import torch.distributed as dist
from comparison import equal, shown

from torch_pjrt.extend import counters

STEPS = 20
LIMIT = 97
LINES = {
    "rows": [[0, 1], [2, 3]],
    "columns": [[0, 2], [1, 3]],
    "all": [[0, 1, 2, 3]],
    "all again": [[0, 1, 2, 3]],
}


class Program:
    """One random program: the same choices on each device and rank, but those that `own` makes."""

    def __init__(self, seed: int, device: str, groups: dict[str, Any], is_alike: bool) -> None:
        self.rank = dist.get_rank()
        self.choose = random.Random(seed)
        self.own = random.Random(seed if is_alike else seed * 1000 + self.rank)
        self.device, self.groups, self.is_alike = device, groups, is_alike
        numbers = (torch.arange(32) * 3 + self.rank * 2 + seed) % 5
        self.x = numbers.float().reshape(8, 4).to(device)
        self.y = (numbers + 1).float().reshape(8, 4).to(device)
        self.read: list[Any] = []

    def run(self) -> list[Any]:
        for _ in range(STEPS):
            self.step()
        return [*self.read, self.x.cpu().clone(), self.y.cpu().clone()]

    def step(self) -> None:
        kind = self.choose.randrange(10)
        if kind == 0:
            self.x, self.y = self.y * 2 + self.x, self.x.flip(0)
        elif kind == 1:
            self.x.add_(self.own.randint(0, 3))
        elif kind == 2 and self.own.random() < 0.5:
            self.read.append(self.x.sum().item())
        elif kind == 3:
            self.read.append(self.y.sum().item())
        elif kind > 3:
            self.collective()
        self.x.remainder_(LIMIT)
        self.y.remainder_(LIMIT)

    def collective(self) -> None:
        name = self.choose.choice(list(LINES))
        is_of_one = self.choose.random() < 0.2 and not self.is_alike
        lines, what, root = LINES[name], self.choose.randrange(5), self.choose.randrange(2)
        if is_of_one and self.rank not in self.choose.choice(lines):
            return
        group = self.groups[name]
        n = dist.get_world_size(group)
        x = self.x
        if what == 0:
            dist.all_reduce(x, group=group)
        elif what == 1:
            whole = torch.zeros(8 * n, 4, device=self.device)
            dist.all_gather_into_tensor(whole, x, group=group)
            self.y = whole[:8] + whole[-8:]
        elif what == 2:
            part = torch.zeros(8 // n, 4, device=self.device)
            dist.reduce_scatter_tensor(part, x, group=group)
            self.y = torch.cat([part] * n)
        elif what == 3:
            dist.broadcast(x, group_src=root, group=group)
        else:
            to = torch.zeros_like(x)
            dist.all_to_all_single(to, x, group=group)
            self.x = to


def main() -> None:
    first, n = int(sys.argv[1]), int(sys.argv[2])
    is_alike = "alike" in sys.argv
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    groups = {
        name: next(
            g for ranks, g in [(r, dist.new_group(r)) for r in lines] if dist.get_rank() in ranks
        )
        for name, lines in LINES.items()
    }
    failed: list[str] = []
    for seed in range(first, first + n):
        expected = Program(seed, "cpu", groups, is_alike).run()
        try:
            seen = Program(seed, "pjrt", groups, is_alike).run()
        except Exception as error:
            failed.append(f"{seed}: {type(error).__name__}: {error}")
            break
        if not equal(seen, expected):
            wrong = [
                i for i, pair in enumerate(zip(seen, expected, strict=True)) if not equal(*pair)
            ]
            i = wrong[0]
            failed.append(f"{seed}: {i}: {shown(seen[i])} is not {shown(expected[i])}")
    ran, compiled = counters.programs_run, counters.programs_compiled
    print(json.dumps({"programs": n, "failed": failed, "ran": ran, "compiled": compiled}))
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TORCH_PJRT_PEER_TIMEOUT", "20")
    main()
