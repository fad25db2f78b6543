"""A process of a run whose ranks do not do the same: prints what each case gave, and after how long.

With `--long` collectives come after more operators than a collective waits for.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer

dist.init_process_group("cpu:gloo,pjrt:pjrt")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def reduced(x: torch.Tensor, group: Any = None) -> list[float]:
    for _ in range(6 if "--long" in sys.argv else 0):
        x = x * 1
    dist.all_reduce(x, group=group)
    return x.cpu().tolist()


def a_number() -> Any:
    return reduced(torch.ones(2, device="pjrt") * (RANK + 1))


def a_graph() -> Any:
    x = torch.full((2,), 2.0, device="pjrt")
    x = x * x * x if RANK == 0 else (x + 1).neg()
    return reduced(x)


def a_seed() -> Any:
    torch.manual_seed(RANK)
    x = torch.rand(4, device="pjrt")
    every = [torch.zeros(4, device="pjrt") for _ in range(SIZE)]
    dist.all_gather(every, x)
    read = [y.cpu().tolist() for y in every]
    return read[RANK] == x.cpu().tolist() and read[0] != read[1]


def a_read() -> Any:
    x = torch.full((2,), RANK + 1.0, device="pjrt") + 1
    if RANK == 0:
        x.sum().item()
    y = reduced(x * 2)
    return y


def a_live_result() -> Any:
    x = torch.arange(3.0, device="pjrt") + RANK
    kept = x * 3 if RANK == 0 else None
    dist.all_reduce(x)
    return [x.cpu().tolist(), kept is None or kept.cpu().tolist() == [0.0, 3.0, 6.0]]


def a_dropped_result() -> Any:
    x, y = torch.ones(2, device="pjrt"), torch.ones(3, device="pjrt")
    dist.all_reduce(x)
    dist.all_reduce(y)
    if RANK == 0:
        del x  # nobody reads it here
        return [2.0, 2.0, *y.cpu().tolist()]
    return [*x.cpu().tolist(), *y.cpu().tolist()]


def a_handle_that_nobody_waits_for() -> Any:
    x = torch.ones(2, device="pjrt")
    dist.all_reduce(x, async_op=True)
    return reduced(x * 2)


def a_shape() -> Any:
    return reduced(torch.ones(2 + RANK, device="pjrt"))


def a_dtype() -> Any:
    return reduced(torch.ones(2, device="pjrt", dtype=(torch.float32, torch.int32)[RANK > 0]))


def a_reduction() -> Any:
    x = torch.ones(2, device="pjrt")
    dist.all_reduce(x, dist.ReduceOp.MAX if RANK else dist.ReduceOp.SUM)


def another_collective() -> Any:
    x = torch.ones(2, device="pjrt")
    return dist.all_reduce(x) if RANK else dist.broadcast(x, 0)


def a_root() -> Any:
    dist.broadcast(torch.ones(2, device="pjrt"), RANK)


def a_factor() -> Any:
    make: Any = dist._make_nccl_premul_sum  # pyright: ignore[reportPrivateImportUsage]
    dist.all_reduce(torch.ones(2, device="pjrt"), make(1.0 + RANK))


def after_all_that() -> Any:
    return reduced(torch.ones(2, device="pjrt"))


def sends_before_receives() -> Any:
    """Both send first: nobody may wait for the other to receive."""
    x = torch.full((300_000,), float(RANK), device="pjrt")
    y = torch.zeros_like(x)
    other = 1 - RANK
    sent = dist.isend(x, other)
    got = dist.irecv(y, other)
    assert got is not None and sent is not None
    got.wait()
    sent.wait()
    return [y[0].item(), y[-1].item()]


def a_group_that_one_uses() -> Any:
    alone = [dist.new_group([r]) for r in range(SIZE)]
    return reduced(torch.ones(1, device="pjrt"), alone[0]) if RANK == 0 else [1.0]


def a_limit_that_is_set_later() -> Any:
    set_limit = dist.distributed_c10d._set_pg_timeout
    set_limit(timedelta(seconds=1))
    time.sleep(2 if RANK == 1 else 0)
    try:
        return reduced(torch.ones(2, device="pjrt"))
    except PeerError as error:
        return str(error).partition("\n")[0]
    finally:
        set_limit(timedelta(seconds=3))


def a_group_that_one_makes() -> Any:
    if RANK == 1:
        # As where it had made it, for groups are named by number; the other waits for 3 s.
        dist.distributed_c10d._world.group_count += 1
        time.sleep(2.5)
        return "made none"
    try:
        dist.new_group(list(range(SIZE)), backend="pjrt")  # gloo itself waits for half an hour
    except PeerError as error:
        return str(error).partition("\n")[0]


def what_is_beside_one_that_differs() -> Any:
    """Nothing else is lost."""
    x, z = torch.arange(3.0, device="pjrt") * 2, torch.ones(2 + RANK, device="pjrt") * 3
    y = x + 1
    try:
        reduced(z)
    except PeersDiffer:
        return [x.tolist(), y.tolist(), (x * y).tolist()]


def a_rank_that_gives_up_and_goes_on() -> Any:
    """The first rank comes when the other waits no more, with a program that is compiled; then both again."""

    def step() -> list[float]:
        y = torch.ones(4, device="pjrt") * torch.tensor([1.0 + RANK] * 4).to("pjrt")
        dist.all_reduce(y)
        return y.tolist()

    for _ in range(4):
        step()
    time.sleep(4.5 if RANK == 0 else 0)
    begun = time.monotonic()
    try:
        step()
    except PeerError as error:
        return [round((time.monotonic() - begun) / 3), error.ranks, step()]


def groups_in_another_order() -> Any:
    limit = timedelta(seconds=3)
    a: Any = dist.new_group(list(range(SIZE)), timeout=limit)
    b: Any = dist.new_group(list(range(SIZE)), timeout=limit)
    x = torch.ones(2, device="pjrt")
    for group in (a, b) if RANK == 0 else (b, a):
        dist.all_reduce(x, group=group)


def a_receive_that_nobody_sends() -> Any:
    group: Any = dist.new_group(list(range(SIZE)))
    dist.recv(torch.ones(2, device="pjrt"), 1 - RANK, group)


def a_send_that_nobody_receives() -> Any:
    group: Any = dist.new_group(list(range(SIZE)))
    dist.send(torch.ones(2, device="pjrt"), 1 - RANK, group)


def a_collective_that_one_skips() -> Any:
    group: Any = dist.new_group(list(range(SIZE)))
    return reduced(torch.ones(2, device="pjrt"), group) if RANK == 0 else "skipped"


CASES: list[Callable[[], Any]] = [
    a_number, a_graph, a_seed, a_read, a_live_result, a_dropped_result,
    a_handle_that_nobody_waits_for, sends_before_receives, a_group_that_one_uses,
    what_is_beside_one_that_differs, a_rank_that_gives_up_and_goes_on,
    a_limit_that_is_set_later, a_group_that_one_makes,
    a_shape, a_dtype, a_reduction, another_collective, a_root, a_factor, after_all_that,
    groups_in_another_order, a_receive_that_nobody_sends, a_send_that_nobody_receives,
    a_collective_that_one_skips,
]  # fmt: skip

if __name__ == "__main__":
    for case in CASES:
        begun = time.monotonic()
        try:
            ended = {"value": case()}
        except Exception as error:
            ended = {"error": f"{type(error).__name__}: {error}"}
        seconds = time.monotonic() - begun
        print(json.dumps({"case": case.__name__, "seconds": seconds, **ended}), flush=True)
