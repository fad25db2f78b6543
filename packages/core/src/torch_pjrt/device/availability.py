"""Whether the device can be used here: asked often by PyTorch, answered without starting anything."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from torch_pjrt.errors import TorchPjrtError


@cache
def is_available() -> bool:
    """Whether some plugin offers a device that this machine can use. Never raises."""
    from torch_pjrt.plugin.host import host

    if find_spec("jax") is None or find_spec("jaxlib") is None:
        return False
    try:
        host().chosen_device()
    except TorchPjrtError:
        return False
    return True
