"""Which devices there are. A process has one, `pjrt:0`, whatever its chips: a mesh spreads tensors over
them."""

from __future__ import annotations

import torch

from torch_pjrt import extend
from torch_xla import process_groups


def device(index: int | None = None) -> torch.device:
    """The device of this process, `pjrt:0`, which joins the run of several processes now, if there is one.

    index   the number of a process on this host: its own, or 0.
    """
    process_groups.join()
    return torch.device("pjrt", index or 0)


def devices() -> list[torch.device]:
    """The devices that tensors of this process can be on."""
    return [device(index) for index in range(device_count())]


def device_count() -> int:
    """How many devices this process has, as `torch.pjrt.device_count()`."""
    return torch.accelerator.device_count()


def real_devices() -> list[str]:
    """The chips behind them: `["TPU:0", ...]`."""
    return [f"{hardware()}:{chip.id}" for chip in extend.client().chips]


def kind() -> str:
    """The chip's name as its plugin gives it, `"TPU v5 lite"`."""
    return extend.client().chip.device_kind


def hardware() -> str:
    """The kind of hardware: `"TPU"`, `"CUDA"`, `"CPU"`, or the platform of the plugin, in capitals."""
    platform = extend.client().chip.platform.upper()
    return "CUDA" if platform == "GPU" else platform
