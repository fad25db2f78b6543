"""A process that calls each collective with tensors that do not go together; prints what each raised."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

dist.init_process_group("pjrt")
RANK, SIZE = dist.get_rank(), dist.get_world_size()


def of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, device="pjrt", dtype=dtype)


def lists(*shape: int, n: int = SIZE, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [of(*shape, dtype=dtype) for _ in range(n)]


def at_root(tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return tensors if RANK == 0 else None


def sparse(n: int) -> torch.Tensor:
    return of(n, n).to_sparse()


INT = torch.int32
MAX = dist.ReduceOp.MAX
CASES: dict[str, Callable[[], Any]] = {
    "all_reduce, sparse and no sum": lambda: dist.all_reduce(sparse(3), MAX),
    "all_reduce, sparse of another layout": lambda: dist.all_reduce(of(3, 3).to_sparse_csr()),
    "all_reduce, sparse of other shapes": lambda: dist.all_reduce(sparse(3 + RANK)),
    "all_gather, own size": lambda: dist.all_gather(lists(3), of(2)),
    "all_gather, dtype": lambda: dist.all_gather(lists(2, dtype=INT), of(2)),
    "all_gather, number": lambda: dist.all_gather(lists(2, n=3), of(2)),
    "all_gather_into_tensor, size": lambda: dist.all_gather_into_tensor(of(5), of(2)),
    "all_gather_into_tensor, dtype": lambda: dist.all_gather_into_tensor(of(4, dtype=INT), of(2)),
    "all_gather_into_tensor, wider": lambda: dist.all_gather_into_tensor(
        of(4, dtype=torch.float64), of(2)
    ),
    "reduce_scatter, own size": lambda: dist.reduce_scatter(of(3), lists(2)),
    "reduce_scatter, dtype": lambda: dist.reduce_scatter(of(2, dtype=INT), lists(2)),
    "reduce_scatter, number": lambda: dist.reduce_scatter(of(2), lists(2, n=3)),
    "reduce_scatter_tensor, size": lambda: dist.reduce_scatter_tensor(of(2), of(5)),
    "reduce_scatter_tensor, dtype": lambda: dist.reduce_scatter_tensor(of(2, dtype=INT), of(4)),
    "all_to_all, number": lambda: dist.all_to_all(lists(2, n=3), lists(2)),
    "all_to_all, dtype": lambda: dist.all_to_all(lists(2, dtype=INT), lists(2)),
    "all_to_all_single, indivisible": lambda: dist.all_to_all_single(of(5), of(5)),
    "all_to_all_single, size": lambda: dist.all_to_all_single(of(6), of(4)),
    "all_to_all_single, dtype": lambda: dist.all_to_all_single(of(4, dtype=INT), of(4)),
    "all_to_all_single, splits": lambda: dist.all_to_all_single(of(4), of(4), [1, 2], [2, 2]),
    "all_to_all_single, number of splits": lambda: dist.all_to_all_single(of(4), of(4), [4], [4]),
}
# Where the root alone sees what is wrong.
AT_ROOT: dict[str, Callable[[], Any]] = {
    "gather, size": lambda: dist.gather(of(2), at_root(lists(3)), 0),
    "gather, dtype": lambda: dist.gather(of(2), at_root(lists(2, dtype=INT)), 0),
    "scatter, size": lambda: dist.scatter(of(2), at_root(lists(3)), 0),
    "scatter, dtype": lambda: dist.scatter(of(2), at_root(lists(2, dtype=INT)), 0),
}

if __name__ == "__main__":
    for name, call in {**CASES, **AT_ROOT}.items():
        if name in AT_ROOT and RANK != 0:
            continue
        begun = time.monotonic()
        try:
            call()
            said = "nothing"
        except (ValueError, TypeError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begun
        print(json.dumps({"case": name, "said": said, "seconds": seconds}), flush=True)
    x = of(2)
    dist.all_reduce(x)
    print(json.dumps({"case": "after", "said": str(x.tolist()), "seconds": 0}), flush=True)
    sys.stdout.flush()
    dist.destroy_process_group()
