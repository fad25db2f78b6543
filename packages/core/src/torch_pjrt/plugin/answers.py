"""What the hooks promise, checked where a plugin answers, so that its plugin gets the blame.

Each check gives the answer in the form that the host works with, or raises `PluginError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch_pjrt.errors import PluginError
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.passes.runner import Pass, Stage
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.foreign_calls import ForeignCalls


def devices(answer: Any) -> Sequence[Device]:
    """Devices, each with a name and a priority."""
    found = _listed("torch_pjrt_devices", answer, Device, "Device objects")
    for device in found:
        if not isinstance(getattr(device, "name", None), str) or not device.name.strip():
            raise PluginError(f"The device {type(device).__qualname__} has no name.")
        if not isinstance(device.priority, int):
            raise PluginError(
                f"The priority of the device `{device.name}` is no int.", saw=repr(device.priority)
            )
    return found


def lowerings(answer: Any) -> LoweringTable | None:
    """A table or None."""
    if answer is not None and not isinstance(answer, LoweringTable):
        raise _wrong("torch_pjrt_lowerings", "a LoweringTable or None", answer)
    return answer


def passes(answer: Any) -> Sequence[Pass]:
    """Passes, each with a name and a stage."""
    found = _listed("torch_pjrt_passes", answer, Pass, "passes (`name`, `stage`, callable)")
    for p in found:
        if not isinstance(p.name, str) or not isinstance(p.stage, Stage):
            raise PluginError(
                f"The pass {type(p).__qualname__} has no name or no stage.",
                saw=f"name {p.name!r}, stage {p.stage!r}",
                expected="a str and a torch_pjrt.plugin.Stage",
            )
    return found


def foreign_calls(answer: Any) -> Sequence[ForeignCalls]:
    """Rows of names and what sets them up."""
    return _listed("torch_pjrt_foreign_calls", answer, ForeignCalls, "ForeignCalls objects")


CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "torch_pjrt_devices": devices,
    "torch_pjrt_lowerings": lowerings,
    "torch_pjrt_passes": passes,
    "torch_pjrt_foreign_calls": foreign_calls,
}


def _listed(hook: str, answer: Any, kind: type, words: str) -> list[Any]:
    """The answer as a list; None, from a function that returns nothing, is an empty one."""
    if answer is None:
        return []
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise _wrong(hook, f"a list of {words}", answer)
    found = list(answer)
    for item in found:
        if isinstance(item, type) or not isinstance(item, kind):
            raise _wrong(hook, f"a list of {words}", item)
    return found


def _wrong(hook: str, expected: str, answer: Any) -> PluginError:
    saw = f"the class {answer.__qualname__}" if isinstance(answer, type) else repr(answer)
    return PluginError(f"`{hook}` gave something else.", saw=saw, expected=expected)
