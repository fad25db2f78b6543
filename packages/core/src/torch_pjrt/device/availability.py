"""Whether the device can be used here: asked often by PyTorch, answered without starting anything."""

from __future__ import annotations

from functools import cache

from torch_pjrt.errors import TorchPjrtError


@cache
def is_available() -> bool:
    """Whether some plugin offers a device that this machine can use. Never raises."""
    from torch_pjrt.plugin.host import host

    try:
        host().chosen_device()
    except TorchPjrtError:
        return False
    return True
