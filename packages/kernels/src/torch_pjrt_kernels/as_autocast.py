"""What `torch.autocast` makes of the arguments of functions that multiply matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Tensor = torch.Tensor
Function = TypeVar("Function", bound=Callable[..., Any])


def as_autocast(*given: Tensor | None) -> tuple[Tensor | None, ...]:
    """The same tensors; where autocast is on, floats but float64 in its dtype, as for any product."""
    first = next((x for x in given if x is not None), None)
    if first is None or not torch.is_autocast_enabled(first.device.type):
        return given
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(
        x.to(dtype) if x is not None and x.is_floating_point() and x.dtype != torch.float64 else x
        for x in given
    )


def in_its_dtypes(function: Function) -> Function:
    """A decorator: `function` multiplies in the dtypes of what it is given, also where autocast is on."""

    @wraps(function)
    def called(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(first.device.type, enabled=False):
            return function(first, *args, **kwargs)

    return called  # type: ignore[return-value]
