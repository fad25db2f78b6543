"""What PyTorch keeps for each thread, taken from one thread to another: a loader's Python depends on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch

_AUTOCAST = ("cpu", "pjrt")


def modes_here() -> Callable[[], ExitStack]:
    """A block, to be entered on another thread, with this thread's modes.

    Gradients, inference mode, the default device, and autocast of the CPU and of our device.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    device = torch.get_default_device()
    autocast = [
        (name, torch.get_autocast_dtype(name), torch.is_autocast_enabled(name))
        for name in _AUTOCAST
    ]
    caches = torch.is_autocast_cache_enabled()

    def entered() -> ExitStack:
        stack = ExitStack()
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        if device != torch.get_default_device():
            stack.enter_context(device)
        for name, dtype, enabled in autocast:
            if enabled:
                stack.enter_context(torch.autocast(name, dtype, cache_enabled=caches))
        return stack

    return entered
