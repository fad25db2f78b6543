"""Whether the device can be used here: asked often by PyTorch, answered without starting anything."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

from torch_pjrt.errors import TorchPjrtError


@cache
def is_available() -> bool:
    """Whether some plugin offers a device that this machine can use. Never raises."""
    return chosen_device_name() is not None


def chosen_device_name() -> str | None:
    """The name of the device that tensors on `pjrt` go to, None where there is none. Never raises.

    >>> chosen_device_name()
    'CPU'
    """
    from torch_pjrt.plugin.host import host

    if find_spec("jax") is None or find_spec("jaxlib") is None:
        return None
    try:
        return host().chosen_device().name
    except TorchPjrtError:
        return None
