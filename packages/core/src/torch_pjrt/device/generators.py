"""`torch.Generator`: for a `pjrt` device, which cannot have one, it says what to do instead."""

from __future__ import annotations

from typing import Any

from torch_pjrt.device.standing_classes import is_pjrt, stand_for
from torch_pjrt.errors import UnsupportedError


def install() -> None:
    """Let `torch.Generator` refuse that one device; does nothing the second time."""
    stand_for("Generator", _made)


def _made(original: Any, *args: Any, **kwargs: Any) -> Any:
    if is_pjrt(kwargs.get("device", args[0] if args else None)):
        raise UnsupportedError(
            "A `pjrt` device has no `torch.Generator` of its own.",
            hint="give its random operators a CPU generator, `torch.Generator()`: they draw what the CPU "
            "draws with it; or seed the device, by `torch.manual_seed` or `torch.pjrt.manual_seed`, and "
            "keep its state by `torch.pjrt.get_rng_state` and `set_rng_state`",
        )
    return original(*args, **kwargs)
