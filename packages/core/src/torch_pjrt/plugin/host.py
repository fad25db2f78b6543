"""The plugins of one process, and the questions that the rest of the code asks of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pluggy

from torch_pjrt.errors import (
    DuplicateDevice,
    DuplicateLowering,
    NoDevice,
    PluginError,
    UnknownDevice,
)
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.passes.runner import Pass, in_order
from torch_pjrt.plugin import core as core_plugin
from torch_pjrt.plugin import spec
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.discovery import Broken, Found, discover


@dataclass(frozen=True, slots=True)
class Offer:
    """A device and the plugin that offers it."""

    device: Device
    plugin: str


class Host:
    """Asks the plugins it is given, in the order of their names, the core first.

    A plugin that raises is disabled, kept in `broken` and reported by name; the others go on.
    """

    def __init__(self, plugins: Mapping[str, ModuleType], broken: Iterable[Broken] = ()) -> None:
        self.broken = list(broken)
        self.plugins: dict[str, ModuleType] = {}
        self._manager = pluggy.PluginManager(spec.NAME)
        self._manager.add_hookspecs(spec)
        for name, plugin in plugins.items():
            try:
                self._manager.register(plugin, name)
                self._refuse_unknown_hooks(name, plugin)
            except Exception as error:
                self._disable(name, error)
            else:
                self.plugins[name] = plugin
        self._offers: list[Offer] | None = None

    def offers(self) -> list[Offer]:
        """All devices that plugins offer. Two of one name are a `DuplicateDevice` that names both plugins."""
        if self._offers is None:
            self._offers = [
                Offer(device, name)
                for name, devices in self._ask("torch_pjrt_devices")
                for device in devices or ()
            ]
        by_name: dict[str, Offer] = {}
        for offer in self._offers:
            first = by_name.setdefault(offer.device.name.upper(), offer)
            if first is not offer:
                raise DuplicateDevice(
                    f"Two plugins offer a device named `{offer.device.name}`.",
                    saw=f"`{first.plugin}` and `{offer.plugin}`",
                    hint=f"uninstall one, or forbid it: TORCH_PJRT_PLUGINS=-{offer.plugin}",
                )
        return self._offers

    def chosen_device(self, wanted: str | None = None) -> Device:
        """The device that `wanted`, else `PJRT_DEVICE` names, else the usable one of highest priority.

        Raises `UnknownDevice` for a name that nobody offers, `NoDevice` where nothing is usable.
        """
        wanted = (wanted or os.environ.get("PJRT_DEVICE", "")).upper()
        offers = self.offers()
        if wanted:
            return self._named(wanted, offers)
        objections = []
        for offer in sorted(offers, key=lambda o: -o.device.priority):
            objection = offer.device.objection()
            if objection is None:
                return offer.device
            objections.append(f"{offer.device.name}: {objection}")
        raise NoDevice(
            "No device for `pjrt` tensors is usable here.",
            saw="; ".join(objections) or self._names(offers),
            hint="pip install torch-pjrt (the CPU device), or a plugin for your hardware; "
            "`python -m torch_pjrt plugins` lists what is installed",
        )

    def lowerings(self, device: Device) -> LoweringTable:
        """The core's rules with those that plugins have for `device` laid over them."""
        core = LoweringTable("core")
        theirs: dict[str, LoweringTable] = {}
        for name, table in self._ask("torch_pjrt_lowerings", device=device):
            if name == core_plugin.PLUGIN:
                core = table
            elif table is not None:
                theirs[name] = table
        owners: dict[Any, str] = {}
        for name, table in theirs.items():
            for op in table:
                if op in owners:
                    raise DuplicateLowering(
                        f"Two plugins give a lowering for `{op}` on `{device.name}`.",
                        saw=f"`{owners[op]}` and `{name}`",
                        hint=f"uninstall one, or forbid it: TORCH_PJRT_PLUGINS=-{name}",
                    )
                owners[op] = name
        return core.overlaid(LoweringTable.merged(device.name, theirs.values()))

    def passes(self, device: Device) -> list[Pass]:
        """The passes of the core and of the plugins for `device`, in the order in which they run."""
        return in_order(
            p for _, passes in self._ask("torch_pjrt_passes", device=device) for p in passes or ()
        )

    def describe(self, device: Device) -> list[tuple[str, str]]:
        """For each plugin, what it offers for `device`, in words; the CLI prints it."""
        lines: dict[str, list[str]] = {name: [] for name in self.plugins}
        for offer in self.offers():
            lines[offer.plugin].append(f"device {offer.device.name}")
        for name, table in self._ask("torch_pjrt_lowerings", device=device):
            if table is not None:
                lines[name].append(f"{len(table)} lowerings")
        for name, passes in self._ask("torch_pjrt_passes", device=device):
            lines[name] += [f"pass {p.name}" for p in passes or ()]
        return [(name, ", ".join(offered) or "nothing") for name, offered in lines.items()]

    def _ask(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Every plugin's answer, by plugin. Asked one by one: one that raises does not silence the others."""
        answers = []
        for name in list(self.plugins):
            others = [p for n, p in self.plugins.items() if n != name]
            try:
                result = self._manager.subset_hook_caller(hook, others)(**arguments)
            except Exception as error:
                if name == core_plugin.PLUGIN:
                    raise  # nothing works without the core: its own bug must show itself
                self._disable(name, error)
            else:
                answers += [(name, answer) for answer in result]
        return answers

    def _refuse_unknown_hooks(self, name: str, plugin: ModuleType) -> None:
        known = {n for n in vars(spec) if n.startswith(f"{spec.NAME}_")}
        for attribute, value in vars(plugin).items():
            if hasattr(value, f"{spec.NAME}_impl") and attribute not in known:
                raise PluginError(
                    f"The plugin `{name}` implements a hook that does not exist.",
                    saw=f"`{attribute}`",
                    expected=f"one of {', '.join(sorted(known))}",
                )

    def _disable(self, name: str, error: Exception) -> None:
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
        self.plugins.pop(name, None)
        self.broken.append(Broken.of(name, error))

    def _named(self, wanted: str, offers: list[Offer]) -> Device:
        for offer in offers:
            if offer.device.name.upper() == wanted:
                if (objection := offer.device.objection()) is not None:
                    raise NoDevice(
                        f"The device `{wanted}` (PJRT_DEVICE) cannot be used here.", saw=objection
                    )
                return offer.device
        raise UnknownDevice(
            f"No plugin offers a device named `{wanted}` (PJRT_DEVICE).",
            saw=self._names(offers),
            hint="`python -m torch_pjrt plugins` lists the plugins that were found",
        )

    def _names(self, offers: list[Offer]) -> str:
        names = ", ".join(o.device.name for o in offers) or "none"
        broken = "".join(f"; the plugin `{b.name}` is broken: {b.why}" for b in self.broken)
        return f"devices on offer: {names}{broken}"


@cache
def host() -> Host:
    """The host of the installed plugins that TORCH_PJRT_PLUGINS allows; the core is the first of them."""
    found: Found = discover()
    return Host({core_plugin.PLUGIN: core_plugin, **found.modules}, found.broken)
