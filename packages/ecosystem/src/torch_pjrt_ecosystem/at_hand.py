"""Whether `pjrt` is the accelerator at hand: what a library uses that is told nothing of a device."""

from __future__ import annotations

import os

import torch


def is_at_hand() -> bool:
    """What `torch.accelerator` says, but for a CPU beside another accelerator that nobody asked for.

    `torch.accelerator.current_accelerator()` is `pjrt` wherever a plugin offers a usable device, the CPU's
    XLA included. Where that CPU is all that there is on `pjrt`, and PyTorch itself has CUDA, XPU or MPS,
    libraries go on with those, unless PJRT_DEVICE names the device or tensors are on it already.
    Starts nothing.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "pjrt":
        return False
    from torch_pjrt.extend import chosen_device_name

    return chosen_device_name() != "cpu" or _is_asked_for() or not _is_another_there()


def _is_asked_for() -> bool:
    is_named = bool(os.environ.get("PJRT_DEVICE", "").strip())
    return is_named or torch.pjrt.is_initialized()  # type: ignore[attr-defined]


def _is_another_there() -> bool:
    return (
        torch.cuda.is_available() or torch.xpu.is_available() or torch.backends.mps.is_available()
    )


def device() -> torch.device:
    """The device, as tensors on it name theirs."""
    return torch.device("pjrt", 0)
