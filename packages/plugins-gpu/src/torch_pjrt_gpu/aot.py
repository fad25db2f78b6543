"""The chips of GPUs that are not here: JAX's CUDA plugin compiles for them on a machine without a driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.errors import DeviceError
from torch_pjrt.plugin import compile_only_chips, platforms_of_plugins
from torch_pjrt_gpu.targets import CARDS, Card, config_of

if TYPE_CHECKING:
    import jax

_TARGET = re.compile(rf"({'|'.join(CARDS)})(?::(\d+))?")


def card_of(target: str) -> tuple[Card, int] | None:
    """The card of `h100` or `h100:8`, and how many there are; None for a name of another kind."""
    found = _TARGET.fullmatch(target)
    return (CARDS[found[1]], int(found[2] or 1)) if found else None


def chips_of(target: str) -> Sequence[jax.Device] | None:  # pyright: ignore[reportInvalidTypeForm]
    """The cards of `h100:8`, of one host. `DeviceError` without JAX's CUDA plugin."""
    found = card_of(target)
    if found is None:
        return None
    if "cuda" not in platforms_of_plugins():
        raise DeviceError(
            f"Compiling for `{target}` takes JAX's CUDA plugin, though no GPU.",
            hint='pip install "torch-pjrt-gpu[cuda13]"; with JAX_PLATFORMS=cpu JAX lets it be without CUDA',
        )
    card, n = found
    return compile_only_chips("cuda", target_config=config_of(card), topology=f"1x1x{n}")
