"""A process of two that call collectives which differ; prints what tensors hold after the error.

    failed_collectives.py WHEN

WHEN is `call`: the collective fails where it is called, as next to nothing is before it; or `later`: it
waits, and what is recorded after it uses what it gives.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torch_pjrt.errors import LostValue
from torch_pjrt.extend import current
from torch_pjrt_spmd.distributed.errors import PeersDiffer

dist.init_process_group("pjrt")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
IS_LATER = sys.argv[1] == "later"
N = 3 + RANK  # so the ranks' collectives differ

Made = dict[str, torch.Tensor]


def of(value: float, n: int = N) -> torch.Tensor:
    """A tensor that is there before the program at fault."""
    x = torch.full((n,), float(value), device="pjrt")
    x.tolist()
    return x


def waiting(x: torch.Tensor) -> torch.Tensor:
    """The same after operators behind which a collective waits for more; where it is not to, without."""
    for _ in range(8 if IS_LATER else 0):
        x = x * 1
    return x


def in_place(made: Made) -> None:
    made["x"], made["beside"] = of(7), of(5)
    made["x"].copy_(waiting(of(7)))
    made["beside"] += 1
    dist.all_reduce(made["x"])


def a_view(made: Made) -> None:
    x = made["x"] = of(7, 2 * N)
    waiting(x)
    dist.all_reduce(x[:N])


def a_broadcast(made: Made) -> None:
    x = made["x"] = of(7)
    waiting(x)
    dist.broadcast(x, 0)


def a_list(made: Made) -> None:
    made["first"], made["second"] = of(7), of(8)
    dist.all_gather([made["first"], made["second"]], waiting(of(1)))


def one_tensor(made: Made) -> None:
    made["whole"], made["part"] = of(7, SIZE * N), of(8)
    dist.all_gather_single(made["whole"], waiting(of(1)))
    dist.reduce_scatter_single(made["part"], made["whole"])


def never_written(made: Made) -> None:
    made["x"] = torch.empty(SIZE * N, device="pjrt")
    dist.all_gather_single(made["x"], waiting(of(1)))


def a_step_of_an_optimizer(made: Made) -> None:
    weight = torch.nn.Parameter(of(7))
    adam = torch.optim.AdamW([weight], lr=0.5)
    weight.grad = of(0)
    adam.step()
    with torch.no_grad():
        weight.fill_(7).tolist()
    made["weight"], made["moment"] = weight.detach(), adam.state[weight]["exp_avg"]
    weight.grad = waiting(of(3))
    dist.all_reduce(weight.grad)
    adam.step()


def a_copy_of_the_result(made: Made) -> None:
    made["average"], x = of(7), waiting(of(1))
    dist.all_reduce(x)
    made["average"].copy_(x)


def a_copy_of_what_is_gone(made: Made) -> None:
    made["average"], x = of(7), of(1)
    x.copy_(waiting(of(2)))
    dist.all_reduce(x)
    made["average"].copy_(x)
    del x


def new_tensors(made: Made) -> None:
    x = made["x"] = waiting(of(1))
    dist.all_reduce(x)
    made["double"], made["sum"] = x * 2, x.sum()


def two_collectives(made: Made) -> None:
    made["x"], made["y"] = of(7), of(8)
    waiting(of(1))
    dist.all_reduce(made["x"])
    dist.all_reduce(made["y"])


CASES: list[Callable[[Made], None]] = [
    in_place, a_view, a_broadcast, a_list, one_tensor, never_written, a_step_of_an_optimizer,
    a_copy_of_the_result, a_copy_of_what_is_gone, new_tensors, two_collectives,
]  # fmt: skip


def read(x: torch.Tensor) -> Any:
    """The one number that it holds."""
    try:
        numbers = set(x.reshape(-1).tolist())
    except LostValue:
        return "lost"
    return numbers.pop() if len(numbers) == 1 else sorted(numbers)


def after(case: Callable[[Made], None]) -> dict[str, Any]:
    """What the tensors of a case hold after it, and what is left of it on the tape."""
    made: Made = {}
    error = "none"
    try:
        case(made)
        of(1).sum().item()
    except PeersDiffer:
        error = "PeersDiffer"
    left = [current().size, current().joint is not None]
    return {"error": error, "left": left, "holds": {name: read(x) for name, x in made.items()}}


if __name__ == "__main__":
    for case in CASES:
        print(json.dumps({"case": case.__name__, **after(case)}), flush=True)
    x = of(1, 2)
    dist.all_reduce(x)
    print(json.dumps({"case": "after_all_that", "holds": {"x": read(x)}}), flush=True)
    dist.destroy_process_group()
