"""The state of the device's random numbers, kept beside a library's own checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def state() -> torch.Tensor | None:
    """It, None where the device has not been started: then nothing was drawn on it."""
    if not torch.pjrt.is_initialized():  # type: ignore[attr-defined]
        return None
    return torch.pjrt.get_rng_state()  # type: ignore[attr-defined]


def set_state(now: torch.Tensor | None) -> None:
    """Go back to what `state` gave."""
    if now is not None:
        torch.pjrt.set_rng_state(now)  # type: ignore[attr-defined]


def save(folder: str | os.PathLike[str], process: int) -> None:
    """Write it into the folder, if the device has been started."""
    now = state()
    if now is not None:
        torch.save(now, _file(folder, process))


def load(folder: str | os.PathLike[str], process: int) -> None:
    """Go back to what `save` wrote; does nothing for a checkpoint of another device."""
    file = _file(folder, process)
    if file.is_file():
        set_state(torch.load(file, map_location="cpu", weights_only=True))


def _file(folder: str | os.PathLike[str], process: int) -> Path:
    return Path(folder) / f"random_state_pjrt_{process}.pt"
