"""The state of the device's random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def set_rng_state(seed: int | torch.Tensor, device: Any = None) -> None:
    """Set the state: a number is a seed, a tensor what `get_rng_state` returned."""
    module = torch.get_device_module("pjrt")
    if isinstance(seed, torch.Tensor):
        module.set_rng_state(seed)
    else:
        module.manual_seed(int(seed))


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state, a tensor of bytes on the CPU. torch_xla's is a number: here a state is more than its
    seed."""
    return torch.get_device_module("pjrt").get_rng_state()


@contextmanager
def fork_rng(device: Any = None, enabled: bool = True) -> Iterator[None]:
    """A block after which the random numbers of CPU and device go on as if it had not been."""
    with torch.random.fork_rng([0], enabled=enabled, device_type="pjrt"):
        yield
