"""`isolate_rng`, and what else keeps all random states, with that of the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_pjrt_ecosystem import random_states
from torch_pjrt_ecosystem.replacing import wrap

_KEY = "torch.pjrt"


def install(seed: Any) -> None:
    """`seed` is Fabric's `utilities.seed`."""
    wrap(seed, "_collect_rng_states", _collect)
    wrap(seed, "_set_rng_states", _set)


def _collect(original: Callable[..., dict[str, Any]], include_cuda: bool = True) -> dict[str, Any]:
    """As CUDA's states, ours are left out where a worker of a loader collects."""
    states = original(include_cuda)
    if include_cuda and (now := random_states.state()) is not None:
        states[_KEY] = now
    return states


def _set(original: Callable[[dict[str, Any]], None], rng_state_dict: dict[str, Any]) -> None:
    original(rng_state_dict)
    random_states.set_state(rng_state_dict.get(_KEY))
