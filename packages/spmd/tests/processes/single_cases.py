"""Splits, layouts, handles, coalescing, objects and subgroups: each once."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from comparison import Cases, World, data
from torch.distributed.distributed_c10d import _coalescing_manager


def _uneven(world: World, device: str) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    r, n = world.rank, world.size
    ins = [(r + to) % 3 for to in range(n)]
    outs = [(k + r) % 3 for k in range(n)]
    given = data((sum(ins), 2), torch.float32, r).to(device)
    return torch.zeros((sum(outs), 2)).to(device), given, outs, ins


def one_by_one(cases: Cases, world: World) -> None:
    """Splits, layouts, handles, coalescing, objects: each once."""
    r, n, g = world.rank, world.size, world.group

    def uneven_single(device: str) -> Any:
        out, given, outs, ins = _uneven(world, device)
        dist.all_to_all_single(out, given, outs, ins, g)
        return out

    def uneven_lists(device: str) -> Any:
        out, given, outs, ins = _uneven(world, device)
        parts = [torch.zeros_like(p) for p in out.split(outs)]
        dist.all_to_all(parts, list(given.split(ins)), g)
        return parts

    def uneven_gather(device: str) -> Any:
        """What gloo refuses and NCCL takes."""
        outs = [torch.zeros(k + 1, 2).to(device) for k in range(n)]
        dist.all_gather(outs, data((r + 1, 2), torch.float32, r).to(device), g)
        return outs

    def uneven_scatter(device: str) -> Any:
        out = torch.zeros(r + 1, 2).to(device)
        given = [data((k + 1, 2), torch.float32, r, k).to(device) for k in range(n)]
        dist.reduce_scatter(out, given, group=g)
        return out

    def even_splits(device: str) -> Any:
        given = data((2 * n,), torch.int64, r).to(device)
        out = torch.zeros_like(given)
        dist.all_to_all_single(out, given, [2] * n, [2] * n, g)
        return out

    def slices(device: str) -> Any:
        base = data((6, 4), torch.float32, r).to(device)
        dist.all_reduce(base[1:3], group=g)
        dist.broadcast(base[4], world.root(0), g)
        return base

    def transposed(device: str) -> Any:
        """gloo wants them contiguous; NCCL takes those that are dense."""
        base = data((6, 4), torch.float32, r).to(device)
        y = base.t().contiguous() if device == "cpu" else base.t()
        dist.all_reduce(y, group=g)
        return y

    def every_other(device: str) -> Any:
        base = data((6, 4), torch.float32, r).to(device)
        y = base[:, ::2]
        if device == "cpu":
            z = y.contiguous()
            dist.all_reduce(z, group=g)
            y.copy_(z)
        else:
            dist.all_reduce(y, group=g)
        return base

    def sparse(device: str) -> Any:
        """Of each rank another number of values, of rank 0 none; rows that are dense; one place twice."""
        few = torch.eye(5, dtype=torch.int64).mul(r) * (torch.arange(5) < r)[:, None]
        x, y = few.to_sparse().to(device), data((4, 3), torch.float32, r).to_sparse(1).to(device)
        places, values = torch.tensor([[1, 1, 3]]), data((3, 2), torch.float32, r)
        z = torch.sparse_coo_tensor(places, values, (5, 2), check_invariants=True).to(device)
        for one in (x, y, z):
            dist.all_reduce(one, group=g)
        return [part.cpu() for one in (x, y, z) for part in (one.indices(), one.values())]

    def gathered_views(device: str) -> Any:
        out = torch.zeros(n, 6).to(device)
        dist.all_gather(list(out.unbind(0)), data((6,), torch.float32, r).to(device), g)
        return out

    def in_place_gather(device: str) -> Any:
        out = torch.zeros(n, 4).to(device)
        out[r] = data((4,), torch.float32, r).to(device)
        dist.all_gather_into_tensor(out, out[r].clone(), g)
        return out

    def concatenated(device: str) -> Any:
        out = torch.zeros(n * 4, 3).to(device)
        dist.all_gather_into_tensor(out, data((4, 3), torch.float32, r).to(device), g)
        part = torch.zeros(4, 3).to(device)
        dist.reduce_scatter_tensor(part, out, group=g)
        return [out, part]

    def handles(device: str) -> Any:
        x = data((3,), torch.float32, r).to(device)
        work = dist.all_reduce(x, group=g, async_op=True)
        assert work is not None
        done = work.wait()
        return [x, done, work.is_completed()]

    def futures(device: str) -> Any:
        x = data((3,), torch.float32, r).to(device)
        work = dist.all_reduce(x, group=g, async_op=True)
        assert work is not None
        return work.get_future().then(lambda f: f.value()[0] * 2).wait()

    def chained(device: str) -> Any:
        """Operators before, between and after, with nothing read."""
        x = data((3,), torch.float32, r).to(device) * 2 + 1
        dist.all_reduce(x, group=g)
        y = x * (r + 1)
        dist.all_reduce(y, group=g)
        x += y
        return [x, y]

    def same_tensor_twice(device: str) -> Any:
        x = data((3,), torch.float32, r).to(device)
        before = x.clone()
        dist.all_reduce(x, group=g)
        dist.all_reduce(x, group=g)
        return [x, before]

    def sends(device: str) -> Any:
        x = data((3, 2), torch.float32, r).to(device)
        if r == 0:
            dist.send(x, world.root(1), g, tag=3)
            dist.recv(x, world.root(1), g, tag=4)
        elif r == 1:
            y = torch.zeros_like(x)
            source = dist.recv(y, world.root(0), g, tag=3)
            dist.send(y + x, world.root(0), g, tag=4)
            return [y, source]
        return x

    def from_anyone(device: str) -> Any:
        x = data((2,), torch.float32, r).to(device)
        if r != 0:
            dist.send(x, world.root(0), g)
            return None
        got = {}
        for _ in range(n - 1):
            y = torch.zeros_like(x)
            source = dist.recv(y, None, g)
            got[source] = y
        return [got[k] for k in sorted(got)] + sorted(got)

    def batched(device: str) -> Any:
        x = data((2,), torch.float32, r).to(device)
        y = torch.zeros_like(x)
        ops = [
            dist.P2POp(dist.isend, x, world.root((r + 1) % n), g),
            dist.P2POp(dist.irecv, y, world.root((r - 1) % n), g),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return y

    def receives_first(device: str) -> Any:
        x = data((2,), torch.float32, r).to(device)
        y = torch.zeros_like(x)
        got = dist.irecv(y, world.root((r - 1) % n), g)
        sent = dist.isend(x, world.root((r + 1) % n), g)
        assert got is not None and sent is not None
        got.wait()
        sent.wait()
        return y

    def two_tags(device: str) -> Any:
        x = data((2,), torch.float32, r).to(device)
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        to, source = world.root((r + 1) % n), world.root((r - 1) % n)
        works = [
            dist.isend(x, to, g, tag=1), dist.isend(x * 2, to, g, tag=2),
            dist.irecv(b, source, g, tag=2), dist.irecv(a, source, g, tag=1),
        ]  # fmt: skip
        for work in works:
            assert work is not None
            work.wait()
        return [a, b]

    def coalesced(device: str) -> Any:
        """The tensors alone: CPU's gloo has no coalescing."""
        xs = [data((2, k), torch.float32, r).to(device) for k in (1, 2)]
        if device == "cpu":
            for x in xs:
                dist.all_reduce(x, group=g)
            return xs
        with _coalescing_manager(g, torch.device("pjrt")):
            for x in xs:
                dist.all_reduce(x, group=g)
        return xs

    def coalesced_gathers(device: str) -> Any:
        xs = [data((2, k), torch.float32, r).to(device) for k in (1, 2)]
        outs = [torch.zeros(2 * n, k).to(device) for k in (1, 2)]
        if device == "cpu":
            for out, x in zip(outs, xs, strict=True):
                dist.all_gather_into_tensor(out, x, g)
            return outs
        with _coalescing_manager(g, torch.device("pjrt"), async_ops=True) as works:
            for out, x in zip(outs, xs, strict=True):
                dist.all_gather_into_tensor(out, x, g)
        works.wait()
        return outs

    def coalesced_scatters(device: str) -> Any:
        xs = [data((2 * n, k), torch.float32, r).to(device) for k in (1, 2)]
        outs = [torch.zeros(2, k).to(device) for k in (1, 2)]
        if device == "cpu":
            for out, x in zip(outs, xs, strict=True):
                dist.reduce_scatter_tensor(out, x, group=g)
            return outs
        with _coalescing_manager(g, torch.device("pjrt")):
            for out, x in zip(outs, xs, strict=True):
                dist.reduce_scatter_tensor(out, x, group=g)
        return outs

    def barriers(device: str) -> Any:
        dist.barrier(g)
        dist.monitored_barrier(g, wait_all_ranks=True)
        work = dist.barrier(g, async_op=True)
        if work is not None:
            work.wait()
        return "passed"

    def objects(device: str) -> Any:
        mine = {"rank": r, "text": "x" * r}
        every: list[Any] = [None] * n
        dist.all_gather_object(every, mine, g)
        shared: list[Any] = [mine, r]
        dist.broadcast_object_list(shared, world.root(0), g, device=torch.device(device))
        at_root: list[Any] | None = [None] * n if r == 0 else None
        dist.gather_object(mine, at_root, world.root(0), g)
        given: list[Any] = [None]
        out = [f"to {k}" for k in range(n)] if r == 0 else None
        dist.scatter_object_list(given, out, world.root(0), g)
        return [every, shared, at_root, given]

    def sent_objects(device: str) -> Any:
        things: list[Any] = [{"a": 1}, [2, 3]] if r == 0 else [None, None]
        if r == 0:
            dist.send_object_list(things, world.root(1), g, device=torch.device(device))
        if r == 1:
            dist.recv_object_list(things, world.root(0), g, device=torch.device(device))
        return things

    for run in (
        uneven_single, uneven_lists, even_splits, slices, transposed, every_other, sparse,
        gathered_views, in_place_gather, concatenated, handles, futures, chained, same_tensor_twice, sends,
        from_anyone, batched, receives_first, two_tags, coalesced, coalesced_gathers,
        coalesced_scatters, barriers, objects, sent_objects,
    ):  # fmt: skip
        cases.same(run.__name__, run)
    alls = [data((k + 1, 2), torch.float32, k) for k in range(n)]
    cases.gives("uneven_gather", uneven_gather, alls)
    mine = [data((r + 1, 2), torch.float32, k, r) for k in range(n)]
    cases.gives("uneven_scatter", uneven_scatter, torch.stack(mine).sum(0))


def subgroups(cases: Cases) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    everyone: Any = dist.new_group(list(range(n)))
    backwards = dist.new_group(list(reversed(range(n))), sort_ranks=False)  # pyright: ignore
    pairs = [dist.new_group([a, a + 1]) for a in range(0, n - 1, 2)]
    alone = [dist.new_group([k]) for k in range(n)][r]
    some = dist.new_group([0, n - 1])
    for label, group in (("all", everyone), ("alone", alone), ("pair", pairs[r // 2])):
        _few(cases, label, World(group))
    if backwards is not None:
        _few(cases, "backwards", World(backwards))
    if r in (0, n - 1):  # used by these alone
        _few(cases, "some", World(some))
    dist.destroy_process_group(everyone)


def _few(cases: Cases, label: str, world: World) -> None:
    def all_reduce(device: str) -> Any:
        x = data((3,), torch.float32, world.rank).to(device)
        dist.all_reduce(x, group=world.group)
        return x

    def gather(device: str) -> Any:
        outs = [torch.zeros(3).to(device) for _ in range(world.size)]
        dist.all_gather(outs, data((3,), torch.float32, world.rank).to(device), world.group)
        return outs

    def broadcast(device: str) -> Any:
        x = data((3,), torch.int64, world.rank).to(device)
        dist.broadcast(x, world.root(world.size - 1), world.group)
        return x

    for run in (all_reduce, gather, broadcast):
        cases.same(f"{label}: {run.__name__}", run)
