"""Functional collectives, gradients through collectives, and both under `torch.compile`, against gloo.

A process that prints what it found, as `compare_with_gloo.py`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as nn
from comparison import Cases, Run

fc: Any = functional
Function = Callable[[torch.Tensor], Any]

warnings.filterwarnings("ignore", category=FutureWarning)  # PyTorch is renaming its functions


def values(f: Function, shape: tuple[int, ...] = (4, 2)) -> Run:
    return lambda device: _listed(f(_given(device, shape)))


def gradients(f: Function) -> Run:
    """What a function gives, and the gradient of what it was given: other weights on each rank."""

    def run(device: str) -> Any:
        x = _given(device, (4, 2)).requires_grad_()
        ys = _listed(f(x))
        total: Any = sum((y * (i + 1) * (dist.get_rank() + 1)).sum() for i, y in enumerate(ys))
        total.backward()
        return [*[y.detach() for y in ys], x.grad]

    return run


def compiled(f: Function, kind: Callable[[Function], Run]) -> Run:
    def run(device: str) -> Any:
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="pjrt" if device == "pjrt" else "aot_eager")
        return kind(compiled)(device)

    return run


def _given(device: str, shape: tuple[int, ...]) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)).reshape(shape) + dist.get_rank()).to(device)


def _listed(y: Any) -> list[torch.Tensor]:
    ys = y if isinstance(y, (list, tuple)) else [y]
    return [getattr(y, "wait", lambda y=y: y)() for y in ys]


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    return list(x.split(2))


def zeros(x: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device=x.device)


def main() -> None:
    dist.init_process_group("cpu:gloo,pjrt:pjrt")
    g = dist.group.WORLD
    cases = Cases()
    plain: dict[str, Function] = {
        "all_reduce": lambda x: fc.all_reduce(x * 1, "sum", g),
        "all_reduce max, used at once": lambda x: fc.all_reduce(x, "max", g) + 1,
        "all_gather_tensor": lambda x: fc.all_gather_tensor(x, 0, g),
        "all_gather_tensor dim 1": lambda x: fc.all_gather_tensor(x, 1, g),
        "reduce_scatter_tensor": lambda x: fc.reduce_scatter_tensor(x, "sum", 0, g),
        "broadcast": lambda x: fc.broadcast(x, 0, g),
        "all_to_all_single": lambda x: fc.all_to_all_single(x, None, None, g),
        "all_to_all_single splits": lambda x: fc.all_to_all_single(x, [2, 2], [2, 2], g),
        "all_reduce_coalesced": lambda x: fc.all_reduce_coalesced([x, x * 2], "sum", g),
        "gathers coalesced": lambda x: fc.all_gather_into_tensor_coalesced([x, x * 2], g),
        "scatters coalesced": lambda x: fc.reduce_scatter_tensor_coalesced(
            [x, x * 2], "sum", [0, 0], g
        ),
    }
    for name, f in plain.items():
        cases.same(name, values(f))
    cases.same("permute_tensor", values(lambda x: fc.permute_tensor(x, [1, 0], g), (8,)))
    differentiated: dict[str, Function] = {
        "all_gather_tensor": lambda x: fc.all_gather_tensor_autograd(x * 2, 0, g) * 3,
        "reduce_scatter_tensor": lambda x: (
            fc.reduce_scatter_tensor_autograd(x * 2, "sum", 0, g) * 3
        ),
        "all_to_all_single": lambda x: fc.all_to_all_single_autograd(x * 2, None, None, g) * 3,
    }
    for name, f in differentiated.items():
        cases.same(f"gradient of {name}", gradients(f))
        cases.same(f"compiled gradient of {name}", compiled(f, gradients))
    of_nn: dict[str, Function] = {
        "all_reduce": nn.all_reduce,
        "all_gather": nn.all_gather,
        "reduce_scatter": lambda x: nn.reduce_scatter(zeros(x, 2, 2), halves(x)),
        "broadcast": lambda x: nn.broadcast(x, 0),
        "gather": lambda x: nn.gather(x, 0),
        "scatter": lambda x: nn.scatter(halves(x), 0),
        "reduce": lambda x: nn.reduce(x, 0) * (dist.get_rank() == 0),  # of others gloo says nothing
        "all_to_all": lambda x: nn.all_to_all([zeros(x, 2, 2) for _ in range(2)], halves(x)),
        "all_to_all_single": lambda x: nn.all_to_all_single(zeros(x, 4, 2), x),
        "_all_gather_base": lambda x: nn._all_gather_base(zeros(x, 8, 2), x),
    }
    for name, f in of_nn.items():
        cases.same(f"gradient of nn.functional.{name}", gradients(f))
    for name in ("all_reduce max, used at once", "all_gather_tensor", "reduce_scatter_tensor"):
        cases.same(f"compiled {name}", compiled(plain[name], values))
    cases.same("compiled dist.all_reduce", compiled(in_place, values))
    print(json.dumps({"gloo": cases.against_gloo, "failed": cases.failed}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
