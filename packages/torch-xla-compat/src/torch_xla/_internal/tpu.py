"""What Lightning asks of a TPU host. Its names are private to torch_xla, and libraries import them."""

from __future__ import annotations

import re

from torch_xla import chips
from torch_xla.runtime import addressable_runtime_device_count

__all__ = ["num_available_chips", "num_available_devices", "version"]


def num_available_devices() -> int:
    """How many chips this process has; 0 where they are no TPUs. Starts the device."""
    return addressable_runtime_device_count() if chips.hardware() == "TPU" else 0


def num_available_chips() -> int:
    """The same."""
    return num_available_devices()


def version() -> int:
    """The generation of the TPU, 4 for "TPU v4"; `OSError` where there is none. Starts the device."""
    found = re.search(r"v(\d+)", chips.kind()) if chips.hardware() == "TPU" else None
    if found is None:
        raise OSError(f"this host has no TPU: its device is {chips.kind()!r}")
    return int(found[1])
