"""`fori_loop` and `while_loop`: loops that values end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def fori_loop(lower: Any, upper: Any, body_fun: Callable[[int, Any], Any], init_val: Any) -> Any:
    """`value = body_fun(i, value)` for each `i` from `lower` up to `upper`, which are read if they are
    tensors."""
    value = init_val
    for i in range(int(lower), int(upper)):
        value = body_fun(i, value)
    return value


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: tuple[Any, ...],
    additional_inputs: tuple[Any, ...] = (),
) -> tuple[Any, ...]:
    """`torch.while_loop`, compiled: one loop of the program, whose condition is not read on the host."""
    from torch._higher_order_ops import while_loop as of_pytorch

    def run(carried: tuple[Any, ...], more: tuple[Any, ...]) -> Any:
        return of_pytorch(
            lambda *values: cond_fn(*values, *more),
            lambda *values: body_fn(*values, *more),
            carried,
        )

    return torch.compile(run, backend="pjrt")(tuple(carried_inputs), tuple(additional_inputs))
