"""The core as a plugin: its lowerings and passes come through the same hooks as anybody's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_pjrt.plugin.spec import impl

if TYPE_CHECKING:
    from torch_pjrt.lowering import LoweringTable
    from torch_pjrt.passes import Pass
    from torch_pjrt.plugin.device import Device
    from torch_pjrt.plugin.foreign_calls import ForeignCalls

PLUGIN = "core"


@impl
def torch_pjrt_devices() -> Sequence[Device]:
    """Devices that have a PJRT plugin and no package of ours."""
    from torch_pjrt.plugin.unpackaged import devices

    return list(devices())


@impl
def torch_pjrt_lowerings() -> LoweringTable:
    """The rules under all others. Imports JAX, so not before somebody asks."""
    from torch_pjrt.lowering import CORE

    return CORE


@impl
def torch_pjrt_passes() -> Sequence[Pass]:
    """The passes that run on every device."""
    from torch_pjrt.passes import CORE_PASSES

    return CORE_PASSES


@impl
def torch_pjrt_foreign_calls() -> Sequence[ForeignCalls]:
    """What XLA itself makes of these, on any device, while it compiles."""
    from torch_pjrt.plugin.foreign_calls import ForeignCalls

    names = ("AllocateBuffer", "LayoutConstraint", "Sharding", "annotate_device_placement")
    return [ForeignCalls(names)]
