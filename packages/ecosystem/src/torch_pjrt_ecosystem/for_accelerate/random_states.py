"""`save_state` and `load_state` with the device's random state."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from torch_pjrt_ecosystem import random_states
from torch_pjrt_ecosystem.replacing import wrap


def install(accelerator: Any) -> None:
    """`accelerator` is `accelerate.accelerator`."""
    wrap(accelerator, "save_accelerator_state", _save)
    wrap(accelerator, "load_accelerator_state", _load)


def _save(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = signature(original).bind(*args, **kwargs).arguments
    result = original(*args, **kwargs)
    random_states.save(given["output_dir"], given["process_index"])
    return result


def _load(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    given = signature(original).bind(*args, **kwargs).arguments
    result = original(*args, **kwargs)
    random_states.load(given["input_dir"], given["process_index"])
    return result
