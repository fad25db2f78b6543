"""A `generator` of the CPU for random operators on DTensors: it gives the seed by which the shards are drawn.

PyTorch asks a generator for CUDA's state, seed and offset, which one of the CPU has not, and there is none of
this device. So a seed is drawn from it. Where the ranks' generators are alike, so are replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

_DEVICE = "pjrt"


def register(tensor: Any) -> None:
    """Tell `torch.distributed.tensor`, once it has been imported; does nothing the second time."""
    from torch.distributed.tensor import _random

    tracker: Any = _random.OffsetBasedRNGTracker
    if not hasattr(tracker._distribute_region, "takes_generators"):
        tracker._distribute_region = _taking_generators(tracker._distribute_region)


def _taking_generators(region: Any) -> Any:
    @contextmanager
    @wraps(region)
    def drawing(self: Any, spec: Any, generator: torch.Generator | None = None) -> Iterator[None]:
        if generator is None or self._device.type != _DEVICE:
            with region(self, spec, generator):
                yield
            return
        seed = torch.randint(2**63 - 1, (), generator=generator, device="cpu").item()
        with torch.random.fork_rng(devices=[0], device_type=_DEVICE):
            torch.get_device_module(_DEVICE).manual_seed(seed)
            with region(self, spec):
                yield

    drawing.takes_generators = True  # type: ignore[attr-defined]
    return drawing
