"""`fori_loop` and `while_loop`: loops that values end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: Any) -> list[Any]:
    """`value = body_fun(value)`, `upper - lower` times; the bounds are read if they are tensors.

    Returns how many times are left, which is 0, and the value; or the values, where there are several.
    """
    count = int(upper) - int(lower)
    for _ in range(count):
        result = body_fun(*input_value)
        input_value = result if isinstance(result, tuple) else (result,)
    left = torch.zeros_like(upper) if isinstance(upper, torch.Tensor) else min(count, 0)
    return [left, *input_value]


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
