"""What torch-pjrt loads: the hooks. Light, as each user of PyTorch on `pjrt` imports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin import Device, LoweringTable, Pass, impl, separate_cpu_chips

if TYPE_CHECKING:
    import jax


class Sample(Device):
    """An XLA CPU client of its own, in the place of a vendor's hardware.

    Its priority is below that of the CPU device: it is used where PJRT_DEVICE=SAMPLE asks for it.
    """

    name = "SAMPLE"
    priority = -1

    def objection(self) -> str | None:
        return None

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        return separate_cpu_chips()


@impl
def torch_pjrt_devices() -> list[Device]:
    """The one device."""
    return [Sample()]


@impl
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """Rules for our device; nobody else's is touched."""
    if device.name != Sample.name:
        return None
    from sample_pjrt_plugin.lowerings import table

    return table


@impl
def torch_pjrt_passes(device: Device) -> list[Pass]:
    """Passes for our device."""
    if device.name != Sample.name:
        return []
    from sample_pjrt_plugin.merge_relus import MergeRelus

    return [MergeRelus()]
