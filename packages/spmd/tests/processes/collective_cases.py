"""Every collective in every dtype, reduction and shape. Where gloo refuses, the oracle is a formula."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from comparison import Cases, Run, World, data, name_of

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
            dist.reduce_scatter(
                out, [data(shape, dtype, r, to).to(device) for to in range(n)], op, g
            )
            return out

        def scatter_tensor(
            device: str, shape: Any = shape, dtype: Any = dtype, op: Any = op
        ) -> Any:
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
        product = (
            (lambda t: t.all(0)) if dtype == torch.bool else (lambda t: t.prod(0, dtype=t.dtype))
        )
        if not dtype.is_complex:  # PyTorch refuses these, whatever the backend
            cases.gives(f"PRODUCT {label}", all_reduce(whole[r], PRODUCT), product(wide).to(dtype))
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


def _by_bits(
    cases: Cases, label: str, run: Run, shape: Any, dtype: torch.dtype, world: World
) -> None:
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
