"""Random programs of collectives, views and writes in place, on the device and by gloo on CPU tensors.

Collectives read and write parts of tensors that share memory, in any layout; what comes between depends on
the rank here and there: numbers, reads, results that nobody wants. Data are whole numbers, so that every
order of adding gives the same.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from comparison import equal, shown

STEPS = 24
LIMIT = 97  # what is kept of numbers, so that they stay whole in float32
DTYPES = (torch.float32, torch.int64, torch.float64, torch.int32)


class Program:
    """One random program: the same choices on each device and rank, but those that `own` makes."""

    def __init__(self, seed: int, device: str) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.choose = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.rank)
        self.device = device
        self.dtype = self.choose.choice(DTYPES)
        self.said: list[str] = []
        self.read: list[Any] = []
        self.bases = [self.made() for _ in range(3)]

    def run(self) -> list[Any]:
        """All that it has read, and what its tensors hold in the end."""
        for _ in range(STEPS):
            step = self.choose.choice(STEPS_OF)
            self.said.append(step.__name__)
            step(self)
        return [*self.read, *[x.cpu().clone() for x in self.bases]]

    def made(self) -> torch.Tensor:
        """A tensor of n * a by b; its numbers depend on the rank."""
        rows, columns = self.size * self.choose.randint(1, 3), self.choose.randint(1, 5)
        numbers = torch.arange(rows * columns) * 3 + self.rank * 2 + self.choose.randint(0, 4)
        return (numbers % 5).to(self.dtype).reshape(rows, columns).to(self.device)

    def base(self) -> torch.Tensor:
        return self.choose.choice(self.bases)

    def view(self) -> torch.Tensor:
        """Some of a tensor: rows, columns, every other one, the other way round, flat."""
        x, kind = self.base(), self.choose.randint(0, 6)
        if kind == 0:
            return x
        if kind == 1:
            start = self.choose.randrange(x.shape[0])
            return x[start : self.choose.randint(start + 1, x.shape[0])]
        if kind == 2:
            return x[:, self.choose.randrange(x.shape[1]) :]
        if kind == 3:
            return x.t()
        if kind == 4:
            return x[self.choose.randrange(x.shape[0])]
        if kind == 5:
            return x.view(-1)[:: self.choose.randint(1, 2)]
        return x.detach().view(x.shape[1], x.shape[0])

    def on(self, x: torch.Tensor, collective: Callable[[torch.Tensor], Any]) -> None:
        """A collective that writes in place. gloo takes dense tensors alone."""
        if self.device != "cpu" or x.is_contiguous():
            collective(x)
        else:
            dense = x.contiguous()
            collective(dense)
            x.copy_(dense)

    def keep(self, x: torch.Tensor) -> None:
        """A new tensor, in the place of another one."""
        self.bases[self.choose.randrange(len(self.bases))] = x.remainder(LIMIT)


def write(p: Program) -> None:
    x, n = p.view(), p.choose.randint(1, 3)
    x.mul_(n) if p.choose.random() < 0.5 else x.add_(n)
    x.remainder_(LIMIT)


def write_own_number(p: Program) -> None:
    p.view().add_(p.own.randint(0, 3)).remainder_(LIMIT)


def compute(p: Program) -> None:
    x = p.base()
    p.keep(x * 2 + x.flip(0))


def copy_between(p: Program) -> None:
    x, y = p.view().reshape(-1), p.view()
    if x.numel() >= y.numel():
        y.copy_(x[: y.numel()].clone().view(y.shape))


def read(p: Program) -> None:
    """On some ranks only."""
    x = p.view()
    if p.own.random() < 0.5:
        p.read.append(x.sum().item())


def drop(p: Program) -> None:
    """A result that one rank forgets, and others keep in use."""
    x = p.base().clone()
    dist.all_reduce(x)
    if p.own.random() < 0.5:
        p.read.append(x.sum().item())


def reduce(p: Program) -> None:
    op = p.choose.choice((dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN))
    x = p.view()
    p.on(x, lambda t: dist.all_reduce(t, op))
    x.remainder_(LIMIT)


def reduce_later(p: Program) -> None:
    """What is written meanwhile is written before, as programs have it, to another tensor."""
    x = p.base()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    y = torch.ones_like(x) * p.rank
    work.wait()
    x.add_(y).remainder_(LIMIT)


def broadcast(p: Program) -> None:
    root = p.choose.randrange(p.size)
    p.on(p.view(), lambda t: dist.broadcast(t, root))


def gather_into_a_part(p: Program) -> None:
    """The output is of a tensor that has more rows, and may share memory with the input."""
    x = p.base()
    n = x.shape[0] // p.size
    to = torch.zeros(p.size * n + 2, x.shape[1], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(to[1:-1], x[p.rank * n : (p.rank + 1) * n])
    to[0].add_(to[1])
    p.keep(to[: p.size * n])


def gather_in_place(p: Program) -> None:
    """As FSDP does: the input is a part of the output."""
    x = p.base()
    n = x.shape[0] // p.size
    part = x[p.rank * n : (p.rank + 1) * n]
    dist.all_gather_into_tensor(x, part.clone() if p.device == "cpu" else part)


def gather_lists(p: Program) -> None:
    """Each rank's goes to another row of one tensor."""
    x = p.base()
    row = x[p.choose.randrange(x.shape[0])]
    to = torch.zeros(p.size * 2, x.shape[1], dtype=x.dtype, device=x.device)
    dist.all_gather(list(to[::2].unbind(0)), row.contiguous())
    p.keep(to)


def scatter_sums(p: Program) -> None:
    x = p.base()
    n = x.shape[0] // p.size
    to = torch.zeros_like(x)
    dist.reduce_scatter_tensor(to[p.rank * n : (p.rank + 1) * n], x)
    p.keep(to)


def exchange(p: Program) -> None:
    x = p.base()
    to = torch.empty_like(x)
    dist.all_to_all_single(to, x)
    to[0].add_(1)
    p.keep(to)


def functional_gather(p: Program) -> None:
    """Along another dim too; the result is waited for by its first use, or by a view of it."""
    x, dim = p.base(), p.choose.randint(0, 1)
    whole: Any = funcol.all_gather_tensor(x, dim, dist.group.WORLD)  # pyright: ignore
    if p.choose.random() < 0.5:
        whole = whole.view(-1).view(whole.shape)
    p.keep(whole[: x.shape[0], : x.shape[1]] + x)


def functional_scatter(p: Program) -> None:
    x = p.base()
    part: Any = funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)  # pyright: ignore
    p.keep(torch.cat([part] * p.size) - x)


def functional_reduce(p: Program) -> None:
    x = p.base()
    total: Any = funcol.all_reduce(x, "sum", dist.group.WORLD)  # pyright: ignore
    x.add_(1)  # after it was taken
    p.keep(total * 2)


def ring(p: Program) -> None:
    x = p.base()
    y = torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, x.contiguous(), (p.rank + 1) % p.size),
        dist.P2POp(dist.irecv, y, (p.rank - 1) % p.size),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    p.keep(y)


STEPS_OF: tuple[Callable[[Program], None], ...] = (
    write, write, write_own_number, compute, copy_between, read, drop, reduce, reduce, reduce_later,
    broadcast, gather_into_a_part, gather_in_place, gather_lists, scatter_sums, exchange, functional_gather,
    functional_scatter, functional_reduce, ring,
)  # fmt: skip


def main() -> None:
    """Programs of the numbers from the first argument on, as many as the second one says."""
    first, n = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    failed = []
    for seed in range(first, first + n):
        expected, program = Program(seed, "cpu").run(), Program(seed, "pjrt")
        try:
            seen = program.run()
        except Exception as error:
            failed.append(f"{seed}: {program.said}: {type(error).__name__}: {error}")
            break
        if not equal(seen, expected):
            wrong = [i for i, pair in enumerate(zip(seen, expected)) if not equal(*pair)]  # noqa: B905
            i = wrong[0]
            failed.append(
                f"{seed}: {program.said}: {i}: {shown(seen[i])} is not {shown(expected[i])}"
            )
    print(json.dumps({"programs": n, "failed": failed}))
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TORCH_PJRT_PEER_TIMEOUT", "20")
    main()
