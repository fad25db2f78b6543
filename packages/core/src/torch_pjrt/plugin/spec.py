"""All that a plugin can do. A plugin is a module with some of these functions, marked `impl`.

    from torch_pjrt.plugin import impl

    @impl
    def torch_pjrt_devices(): return [MyDevice()]

and an entry point in the group `torch_pjrt` that names the module. Hooks are called when the device
is first used, in the order below, never for a single operator. An implementation may leave out
arguments. A plugin that raises, or answers something else than its hook promises, is disabled with
a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.passes.runner import Pass
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls

NAME = "torch_pjrt"
spec = pluggy.HookspecMarker(NAME)
impl = pluggy.HookimplMarker(NAME)


@spec
def torch_pjrt_devices() -> Sequence[Device]:
    """Name the devices this plugin drives. Called once, before a device is chosen.

    Must not start a device: a user who never uses it should not pay for it. Two plugins that claim
    one name are a `DuplicateDevice`, raised when a device is chosen.
    """
    return ()


@spec
def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
    """Rules that replace the core's on `device`; None where this plugin has none for it.

    Called once, when `device` has been chosen; `python -m torch_pjrt plugins` asks for every device
    on offer. Two plugins may not both give a rule for one operator on one device: that is a
    `DuplicateLowering`. Rules for operators that the core lacks are added. A rule of
    `LoweringTable.lowers_over` does not replace the operator's rule but is given it.
    """
    return None


@spec
def torch_pjrt_passes(device: Device) -> Sequence[Pass]:
    """Passes to run on every graph for `device`, each at its `stage`, after the core's there.

    Called once, when `device` has been chosen; `python -m torch_pjrt plugins` asks for every device
    on offer. Plugins are asked in the order of their names. Two passes of one name are a
    `DuplicatePass`. The fields of a pass are part of what its programs on disk are found by; where one
    cannot be written as text, programs are not kept.
    """
    return ()


@spec
def torch_pjrt_foreign_calls(device: Device) -> Sequence[ForeignCalls]:
    """Custom calls that programs for `device` may have when a later process loads them from disk.

    Called once, when `device` has been chosen; must not start anything. A program with a custom call that no
    plugin names is not kept on disk: the process that loads it would jump to an address that nobody has
    filled in. If several name a call, all of them set it up.
    """
    return ()
