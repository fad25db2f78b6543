"""The plugin: one device, `CPU`, always usable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin import Device, impl

if TYPE_CHECKING:
    import jax


class Cpu(Device):
    """The host's processor, by the XLA CPU client that jaxlib embeds; shared with the user's own JAX code."""

    name = "CPU"
    priority = 0

    def objection(self) -> str | None:
        return None

    def start(self) -> Sequence[jax.Device]:
        import jax

        return jax.local_devices(backend="cpu")


@impl
def torch_pjrt_devices() -> list[Device]:
    """The processor."""
    return [Cpu()]
