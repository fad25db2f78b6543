"""The door for plugins: the hooks, the device interface, and the marker for implementations."""

from torch_pjrt.overloads import aten, prims
from torch_pjrt.plugin.autocast import AutocastRules
from torch_pjrt.plugin.capabilities import Capabilities
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls
from torch_pjrt.plugin.processes import Processes
from torch_pjrt.plugin.spec import impl

__all__ = [
    "AutocastRules",
    "Capabilities",
    "Device",
    "ForeignCalls",
    "Processes",
    "aten",
    "impl",
    "prims",
]
