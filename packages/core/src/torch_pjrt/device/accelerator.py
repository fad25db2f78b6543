"""`torch.accelerator` for what it asks of C++ that a Python backend cannot provide.

Its functions call others in `torch._C`, by name, when they are called. Those that fail for a backend
without an allocator of its own are replaced by ones that ask `torch.pjrt`, where that is the accelerator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def _pjrt() -> Any:
    return torch.pjrt  # type: ignore[attr-defined]


def _exchanged(index: int) -> int:
    """The index that was in force; `DeviceError` for that of a device which is not there."""
    _pjrt().set_device(index)
    return _pjrt().current_device()


#   function in `torch._C`                  what it gives for this device
ANSWERS: dict[str, Callable[..., Any]] = {
    "_accelerator_isAllocatorInitialized": lambda: _pjrt().is_initialized(),
    "_accelerator_emptyCache": lambda: _pjrt().empty_cache(),
    "_accelerator_emptyHostCache": lambda: None,
    "_accelerator_getDeviceStats": lambda index=None: _pjrt()._memory_stats(),
    "_accelerator_resetPeakStats": lambda index=None: _pjrt().reset_peak_memory_stats(),
    "_accelerator_resetAccumulatedStats": lambda index=None: None,
    "_accelerator_getMemoryInfo": lambda index=None: _pjrt().mem_get_info(),
    "_accelerator_getDeviceCapability": lambda index=None: _pjrt()._capability(),
    # PyTorch's would start the device.
    "_accelerator_getDeviceIndex": lambda: _pjrt().current_device(),
    "_accelerator_setDeviceIndex": lambda index: _pjrt().set_device(index),
    "_accelerator_exchangeDevice": _exchanged,
    "_accelerator_maybeExchangeDevice": _exchanged,
    "_accelerator_getStream": lambda index=None: _pjrt().current_stream(),
}


def install() -> None:
    """Replace them; does nothing the second time, and nothing to those that this PyTorch lacks."""
    for name, answer in ANSWERS.items():
        original = getattr(torch._C, name, None)
        if original is not None and not hasattr(original, "knows_pjrt"):
            setattr(torch._C, name, _asking(answer, original))
    original = (
        torch.accelerator.synchronize
    )  # asks for an index first, which would start the device
    if not hasattr(original, "knows_pjrt"):
        torch.accelerator.synchronize = _asking(lambda device=None: _pjrt().synchronize(), original)


def _asking(answer: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def ask(*args: Any) -> Any:
        accelerator = torch._C._accelerator_getAccelerator()
        mine = accelerator is not None and accelerator.type == "pjrt"
        return answer(*args) if mine else original(*args)

    ask.knows_pjrt = True  # type: ignore[attr-defined]
    return ask
