"""`mixed_precision="fp16"`: the list of devices that have it, and the scaler."""

from __future__ import annotations

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch

from torch_pjrt_ecosystem.replacing import NotThere, wrap


def install(accelerator: Any) -> None:
    """`accelerator` is `accelerate.accelerator`."""
    _admit(unwrap(accelerator.Accelerator.__init__))  # other rows wrap it
    wrap(accelerator, "get_grad_scaler", _get_grad_scaler)


def _admit(function: Any) -> None:
    """Add `pjrt` to the one tuple of devices among the constants of the function; `NotThere` without it.

    It is a local variable, which nothing but the function's code holds.
    """
    constants = function.__code__.co_consts
    lists = [x for x in constants if isinstance(x, tuple) and {"cuda", "xla", "npu"} <= set(x)]
    if len(lists) != 1:
        raise NotThere(f"`{function.__qualname__}` has {len(lists)} lists of devices with float16")
    if "pjrt" in lists[0]:
        return
    admitted = tuple((*x, "pjrt") if x is lists[0] else x for x in constants)
    function.__code__ = function.__code__.replace(co_consts=admitted)


def _get_grad_scaler(
    original: Callable[..., Any], distributed_type: Any = None, **kwargs: Any
) -> Any:
    from accelerate.state import AcceleratorState  # pyright: ignore[reportMissingImports]
    from accelerate.utils import DistributedType  # pyright: ignore[reportMissingImports]

    is_ours = AcceleratorState().device.type == "pjrt"
    if is_ours and distributed_type != DistributedType.FSDP:  # which has a scaler of its own
        return torch.amp.GradScaler("pjrt", **kwargs)
    return original(distributed_type, **kwargs)
