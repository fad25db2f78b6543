"""`torch_pjrt.sync()`: run what is pending, on request."""

from __future__ import annotations

from torch_pjrt.run.sync import sync as _sync


def sync() -> None:
    """Run everything recorded so far as one program; returns when it is launched, not when it is done.

    Raises `CompileError` or `LoweringError` if no program can be made of it. To wait for the device as
    well, call `torch.pjrt.synchronize()`.

        >>> y = torch.ones(2, device="pjrt") + 1  # recorded
        >>> torch_pjrt.sync()  # launched
    """
    _sync("request")
