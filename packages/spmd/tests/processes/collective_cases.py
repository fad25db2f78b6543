"""Every collective on the device against gloo on CPU tensors, in the same processes; prints what differs.

Data are small whole numbers, so that every order of adding gives the same. Where gloo refuses a case, it is
compared with its formula where there is one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

Run = Callable[[str], Any]

SUM, PRODUCT, MIN, MAX, AVG = (
    getattr(dist.ReduceOp, n) for n in ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
)
BITS = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
OPS = (SUM, PRODUCT, MIN, MAX, *BITS)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
OTHERS = (torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2)
DTYPES = (*FLOATS, *INTEGERS, *OTHERS)
SHAPES = {"()": (), "(5,)": (5,), "(4,3)": (4, 3), "(0,)": (0,), "(2,0,3)": (2, 0, 3)}


class Cases:
    """Runs cases and keeps what they did: how many ran against gloo, against a formula, and what failed."""

    def __init__(self) -> None:
        self.against_gloo = self.against_formula = self.refused = 0
        self.failed: list[str] = []

    def same(self, name: str, run: Run) -> None:
        """The case gives on the device what it gives with gloo, or gloo refuses it."""
        try:
            expected = run("cpu")
        except (RuntimeError, ValueError, NotImplementedError):
            self.refused += 1
            return
        self.against_gloo += 1
        self._compare(name, lambda: run("pjrt"), expected)

    def gives(self, name: str, run: Run, expected: Any) -> None:
        """The case gives on the device what a formula says."""
        self.against_formula += 1
        self._compare(name, lambda: run("pjrt"), expected)

    def _compare(self, name: str, run: Callable[[], Any], expected: Any) -> None:
        try:
            seen = run()
        except Exception as error:
            self.failed.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            return
        if not equal(seen, expected):
            self.failed.append(f"{name}: {shown(seen)} is not {shown(expected)}")


def equal(seen: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        seen = seen.cpu()
        if seen.dtype != expected.dtype or seen.shape != expected.shape:
            return False
        if seen.dtype.is_floating_point and seen.element_size() == 1:
            seen, expected = seen.float(), expected.float()
        return torch.equal(seen, expected)
    if isinstance(expected, (list, tuple)):
        return len(seen) == len(expected) and all(map(equal, seen, expected))
    return seen == expected


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.cpu().tolist() if value.numel() < 20 else list(value.shape)}"
    return str([shown(v) for v in value]) if isinstance(value, (list, tuple)) else str(value)


def data(shape: tuple[int, ...], dtype: torch.dtype, rank: int, to: int = 0) -> torch.Tensor:
    """Whole numbers from 0 to 4 that depend on the ranks and the place, on the CPU."""
    n = torch.Size(shape).numel()
    numbers = (torch.arange(n) * 3 + rank * 2 + to * 5 + 1) % 5
    if dtype == torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers - 2).double()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(shape)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class World:
    """A group and the place in it of this process."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def root(self, i: int) -> int:
        return dist.get_global_rank(self.group, i) if self.group is not None else i


def reductions(cases: Cases, world: World) -> None:
    r, n, g = world.rank, world.size, world.group
    for dtype, op, (shown_shape, shape) in itertools.product(DTYPES, OPS, SHAPES.items()):
        if shown_shape != "(4,3)" and (dtype != torch.float32 or op not in (SUM, PRODUCT, MIN)):
            continue
        label = f"{op} {name_of(dtype)} {shown_shape}"

        def all_reduce(device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op) -> Any:
            x = data(shape, dtype, r).to(device)
            dist.all_reduce(x, op, g)
            return x

        def reduce(device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op) -> Any:
            x = data(shape, dtype, r).to(device)
            dist.reduce(x, world.root(n - 1), op, g)
            return x if r == n - 1 else None

        def scatter_list(device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op) -> Any:
            out = torch.zeros(shape, dtype=dtype).to(device)
            dist.reduce_scatter(out, [data(shape, dtype, r, to).to(device) for to in range(n)], op, g)
            return out

        def scatter_tensor(device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op) -> Any:
            out = torch.zeros(shape, dtype=dtype).to(device)
            given = torch.stack([data(shape, dtype, r, to) for to in range(n)]).to(device)
            dist.reduce_scatter_tensor(out, given, op, g)
            return out

        def coalesced(device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op) -> Any:
            xs = [data((*shape, k), dtype, r).to(device) for k in (1, 2)]
            dist.all_reduce_coalesced(xs, op, g)
            return xs

        cases.same(f"all_reduce {label}", all_reduce)
        if shown_shape == "(4,3)":
            cases.same(f"reduce_scatter_tensor {label}", scatter_tensor)
        if dtype in (torch.float32, torch.int64) and shown_shape in ("(4,3)", "()"):
            cases.same(f"reduce {label}", reduce)
            cases.same(f"reduce_scatter {label}", scatter_list)
            cases.same(f"all_reduce_coalesced {label}", coalesced)


def reductions_by_formula(cases: Cases, world: World) -> None:
    r, n, g = world.rank, world.size, world.group

    def all_reduce(x: torch.Tensor, op: Any) -> Run:
        def run(device: str) -> Any:
            y = x.to(device)
            dist.all_reduce(y, op, g)
            return y

        return run

    def scatter(xs: list[torch.Tensor], op: Any) -> Run:
        def run(device: str) -> Any:
            out = torch.zeros_like(xs[0]).to(device)
            dist.reduce_scatter_tensor(out, torch.stack(xs).to(device), op, g)
            return out

        return run

    for dtype in DTYPES:
        whole = torch.stack([data((4, 3), dtype, k) for k in range(n)])
        wide = whole.to(torch.float64) if dtype.is_floating_point else whole
        mine = [data((4, 3), dtype, r, to) for to in range(n)]
        theirs = torch.stack([data((4, 3), dtype, k, r) for k in range(n)])
        theirs_wide = theirs.to(torch.float64) if dtype.is_floating_point else theirs
        label = name_of(dtype)
        total = (lambda t: t.any(0)) if dtype == torch.bool else (lambda t: t.sum(0, dtype=t.dtype))
        cases.gives(f"SUM {label}", all_reduce(whole[r], SUM), total(wide).to(dtype))
        cases.gives(f"scatter SUM {label}", scatter(mine, SUM), total(theirs_wide).to(dtype))
        product = (lambda t: t.all(0)) if dtype == torch.bool else (lambda t: t.prod(0, dtype=t.dtype))
        cases.gives(f"PRODUCT {label}", all_reduce(whole[r], PRODUCT), product(wide).to(dtype))
        if not dtype.is_complex:
            for op, of in ((MIN, torch.amin), (MAX, torch.amax)):
                cases.gives(f"{op} {label}", all_reduce(whole[r], op), of(wide, 0).to(dtype))
        if dtype in INTEGERS or dtype == torch.bool:
            for op, of in zip(
                BITS, (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor), strict=True
            ):
                expected = whole[0]
                for k in range(1, n):
                    expected = of(expected, whole[k])
                cases.gives(f"{op} {label}", all_reduce(whole[r], op), expected)
        if dtype != torch.bool and dtype.itemsize > 1:
            mean = (wide.sum(0) / n).to(dtype)
            if dtype in INTEGERS:
                mean = wide.sum(0, dtype=dtype).div(n, rounding_mode="trunc")
            cases.gives(f"AVG {label}", all_reduce(whole[r], AVG), mean)
        if dtype in FLOATS:
            op = premul(0.5)
            halves = (wide.sum(0) * 0.5).to(dtype)
            cases.gives(f"PREMUL_SUM {label}", all_reduce(whole[r], op), halves)
            other = premul(4.0)
            four = (theirs_wide.sum(0) * 4).to(dtype)
            cases.gives(f"scatter PREMUL_SUM {label}", scatter(mine, other), four)


def premul(factor: float) -> Any:
    return dist._make_nccl_premul_sum(factor)  # pyright: ignore


def movements(cases: Cases, world: World) -> None:
    """What copies and computes nothing, in each dtype and shape."""
    r, n, g = world.rank, world.size, world.group
    for dtype, (shown_shape, shape) in itertools.product(DTYPES, SHAPES.items()):
        if shown_shape != "(4,3)" and dtype not in (torch.float32, torch.bool):
            continue
        here = data(shape, dtype, r)
        zeros = lambda device, s=shape, d=dtype: torch.zeros(s, dtype=torch.uint8).to(d).to(device)  # noqa: E731
        many = lambda device, s=shape, d=dtype: [  # noqa: E731
            data(s, d, r, to).to(device) for to in range(n)
        ]

        def all_gather(device: str, here: Any = here, zeros: Any = zeros) -> Any:
            outs = [zeros(device) for _ in range(n)]
            dist.all_gather(outs, here.clone().to(device), g)
            return outs

        def all_gather_tensor(device: str, here: Any = here, shape: Any = shape) -> Any:
            out = torch.zeros((n, *shape), dtype=torch.uint8).to(here.dtype).to(device)
            dist.all_gather_into_tensor(out, here.clone().to(device), g)
            return out

        def all_gather_coalesced(device: str, here: Any = here, zeros: Any = zeros) -> Any:
            outs = [[zeros(device), zeros(device)] for _ in range(n)]
            dist.all_gather_coalesced(outs, [here.clone().to(device), here.clone().to(device)], g)
            return outs

        def broadcast(device: str, here: Any = here) -> Any:
            x = here.clone().to(device)
            dist.broadcast(x, world.root(n - 1), g)
            return x

        def gather(device: str, here: Any = here, zeros: Any = zeros) -> Any:
            outs = [zeros(device) for _ in range(n)] if r == 0 else None
            dist.gather(here.clone().to(device), outs, world.root(0), g)
            return outs

        def scatter(device: str, many: Any = many, zeros: Any = zeros) -> Any:
            out = zeros(device)
            dist.scatter(out, many(device) if r == n - 1 else None, world.root(n - 1), g)
            return out

        def all_to_all(device: str, many: Any = many, zeros: Any = zeros) -> Any:
            outs = [zeros(device) for _ in range(n)]
            dist.all_to_all(outs, many(device), g)
            return outs

        def all_to_all_single(device: str, many: Any = many, shape: Any = shape) -> Any:
            given = torch.stack(many("cpu")).to(device)
            out = torch.zeros_like(given)
            dist.all_to_all_single(out, given, group=g)
            return out

        def ring(device: str, here: Any = here, zeros: Any = zeros) -> Any:
            out = zeros(device)
            works = [
                dist.isend(here.clone().to(device), world.root((r + 1) % n), g),
                dist.irecv(out, world.root((r - 1) % n), g),
            ]
            for work in works:
                assert work is not None
                work.wait()
            return out

        for run in (
            all_gather, all_gather_tensor, all_gather_coalesced, broadcast, gather, scatter,
            all_to_all, all_to_all_single, ring,
        ):  # fmt: skip
            label = f"{run.__name__} {name_of(dtype)} {shown_shape}"
            refused = cases.refused
            cases.same(label, run)
            if cases.refused > refused and run is not ring and dtype != torch.float32:
                _by_bits(cases, label, run, shape, dtype, world)


def _by_bits(cases: Cases, label: str, run: Run, shape: Any, dtype: torch.dtype, world: World) -> None:
    """What gloo does not take in a dtype: by what is known of the data."""
    r, n = world.rank, world.size
    alls = [data(shape, dtype, k) for k in range(n)]
    to_me = [data(shape, dtype, k, r) for k in range(n)]
    expected: dict[str, Any] = {
        "all_gather": alls,
        "all_gather_tensor": torch.stack(alls),
        "all_gather_coalesced": [[x, x] for x in alls],
        "broadcast": alls[n - 1],
        "gather": alls if r == 0 else None,
        "scatter": data(shape, dtype, n - 1, r),
        "all_to_all": to_me,
        "all_to_all_single": torch.stack(to_me),
    }
    cases.gives(label, run, expected[run.__name__])


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
        got.wait(), sent.wait()
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
        uneven_single, uneven_lists, even_splits, slices, transposed, every_other, gathered_views,
        in_place_gather, concatenated, handles, futures, chained, same_tensor_twice, sends,
        from_anyone, batched, receives_first, two_tags, coalesced, coalesced_gathers,
        coalesced_scatters, barriers, objects, sent_objects,
    ):  # fmt: skip
        cases.same(run.__name__, run)


def subgroups(cases: Cases) -> None:
    n, r = dist.get_world_size(), dist.get_rank()
    everyone = dist.new_group(list(range(n)))
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


def main() -> None:
    whole = "--few" not in sys.argv
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    cases = Cases()
    world = World()
    one_by_one(cases, world)
    subgroups(cases)
    if whole:
        reductions_by_formula(cases, world)
        movements(cases, world)
        reductions(cases, world)
    print(
        json.dumps(
            {
                "gloo": cases.against_gloo,
                "formula": cases.against_formula,
                "refused": cases.refused,
                "failed": cases.failed,
                "chips": torch.pjrt.device_count(),  # pyright: ignore[reportAttributeAccessIssue]
            }
        )
    )
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("TORCH_PJRT_PEER_TIMEOUT", "20")
    main()
