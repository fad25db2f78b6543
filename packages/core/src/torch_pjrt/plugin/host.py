"""The plugins of one process, and the questions that the rest of the code asks of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import pluggy

from torch_pjrt.errors import (
    DuplicateDevice,
    DuplicateLowering,
    DuplicatePass,
    NoDevice,
    PluginError,
    UnknownDevice,
)
from torch_pjrt.lowering.added import ADDED
from torch_pjrt.lowering.table import Lowering, LoweringTable
from torch_pjrt.passes.runner import Pass, in_order
from torch_pjrt.plugin import answers, spec
from torch_pjrt.plugin import core as core_plugin
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.discovery import VARIABLE, Broken, Found, Origin, discover
from torch_pjrt.plugin.foreign_calls import ForeignCalls


@dataclass(frozen=True, slots=True)
class Offer:
    """A device and the plugin that offers it."""

    device: Device
    plugin: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The offer that was chosen, and why, in words; `named` if somebody asked for it."""

    offer: Offer
    why: str
    named: bool = False


class Host:
    """Asks the plugins it is given, one by one and in their order.

    A plugin that raises, or answers what its hook does not promise, is disabled with all that it
    offers, kept in `broken` and reported by name; the others go on. What plugins say that does not
    fit together is an error that names both.
    """

    def __init__(
        self,
        plugins: Mapping[str, ModuleType],
        broken: Iterable[Broken] = (),
        forbidden: Iterable[str] = (),
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        self.broken = list(broken)
        self.forbidden = list(forbidden)
        self.origins = dict(origins or {})
        self.plugins: dict[str, ModuleType] = {}
        self._manager = pluggy.PluginManager(spec.NAME)
        self._manager.add_hookspecs(spec)
        for name, plugin in plugins.items():
            self._add(name, plugin)
        self._devices: list[Offer] | None = None
        self._failed: dict[int, str] = {}

    def all_offers(self) -> list[Offer]:
        """All devices that plugins offer, of one name or not, in the order of the plugins.

        What is a device without a package is left to the package that offers it too.
        """
        if self._devices is None:
            self._devices = [
                Offer(device, name)
                for name, devices in self._ask("torch_pjrt_devices").items()
                for device in devices
            ]
        offers = [offer for offer in self._devices if offer.plugin in self.plugins]
        packaged = {o.device.name.upper() for o in offers if o.plugin != core_plugin.PLUGIN}
        return [
            offer
            for offer in offers
            if offer.plugin != core_plugin.PLUGIN or offer.device.name.upper() not in packaged
        ]

    def offers(self) -> list[Offer]:
        """As `all_offers`; two of one name are a `DuplicateDevice` that names both plugins."""
        offers = self.all_offers()
        by_name: dict[str, Offer] = {}
        for offer in offers:
            first = by_name.setdefault(offer.device.name.upper(), offer)
            if first is not offer:
                raise DuplicateDevice(
                    f"Two plugins offer a device named `{offer.device.name}`."
                    if first.plugin != offer.plugin
                    else f"A plugin offers two devices named `{offer.device.name}`.",
                    saw=f"`{first.plugin}` and `{offer.plugin}`",
                    hint=_forbid(offer.plugin),
                )
        return offers

    def objection(self, offer: Offer) -> str | None:
        """Why the device cannot be used here. Its plugin is disabled if it fails to answer."""
        if id(offer.device) in self._failed:
            return self._failed[id(offer.device)]
        try:
            return offer.device.objection()
        except Exception as error:
            self._disable(offer.plugin, error)
            return f"its plugin `{offer.plugin}` failed: {type(error).__name__}: {error}"

    def give_up_on(self, device: Device, why: str) -> None:
        """From now on that is the objection to the device: it could not be started."""
        self._failed[id(device)] = why

    def choice(self, wanted: str | None = None) -> Choice:
        """What `wanted`, else `PJRT_DEVICE` names, else the usable device of highest priority.

        Of two with equal priority the one whose plugin's name sorts first. Raises `UnknownDevice`
        for a name that nobody offers, `NoDevice` where nothing is usable.
        """
        wanted = (wanted or os.environ.get("PJRT_DEVICE", "")).strip().upper()
        if wanted:
            return Choice(self._named(wanted), "PJRT_DEVICE names it", named=True)
        objections = []
        for offer in by_priority(self.offers()):
            objection = self.objection(offer)
            if objection is None:
                return Choice(offer, "of the usable devices it has the highest priority")
            if offer.plugin in self.plugins:  # else it is among the broken ones, said below
                objections.append(f"{offer.device.name}: {objection}")
        raise NoDevice(
            "No device for `pjrt` tensors is usable here.",
            saw="; ".join(objections) + self._absent() if objections else self._on_offer(),
            hint="pip install torch-pjrt (the CPU device), or a plugin for your hardware; "
            "`python -m torch_pjrt plugins` lists what is installed",
        )

    def chosen_device(self, wanted: str | None = None) -> Device:
        """The device of `choice`."""
        return self.choice(wanted).offer.device

    def lowerings(self, device: Device) -> LoweringTable:
        """The core's rules with those that plugins have for `device` laid over them."""
        tables = self._ask_for(device, "torch_pjrt_lowerings")
        core = tables.pop(core_plugin.PLUGIN, None) or LoweringTable("core")
        theirs = {name: table for name, table in tables.items() if table is not None}
        owners = _owners(device, theirs, "give", lambda table: table)
        _owners(device, theirs, "stand over", lambda table: table.over)
        for op in ADDED:
            if op in owners:
                raise DuplicateLowering(
                    f"A plugin and another package give a lowering for `{op}` on `{device.name}`.",
                    saw=f"`{owners[op]}` ({theirs[owners[op]][op].where}) and {ADDED[op].where}",
                )
        return core.overlaid(LoweringTable.merged(device.name, [*theirs.values(), ADDED]))

    def passes(self, device: Device) -> list[Pass]:
        """The passes of the core and of the plugins for `device`, in the order they run in."""
        owners: dict[str, str] = {}
        passes = []
        for plugin, theirs in self._ask_for(device, "torch_pjrt_passes").items():
            for p in theirs:
                first = owners.setdefault(p.name, plugin)
                if first != plugin:
                    raise DuplicatePass(
                        f"Two plugins add a pass named `{p.name}`.",
                        saw=f"`{first}` and `{plugin}`",
                        hint=_forbid(plugin),
                    )
                passes.append(p)
        return in_order(passes)

    def foreign_calls(self, device: Device) -> list[ForeignCalls]:
        """The custom calls that plugins can set up for programs of `device`."""
        rows = self._ask_for(device, "torch_pjrt_foreign_calls")
        return [row for theirs in rows.values() for row in theirs]

    def offered_for(self, device: Device) -> dict[str, tuple[LoweringTable | None, list[Pass]]]:
        """What each plugin has for `device`, whether or not it fits together."""
        tables = self._ask("torch_pjrt_lowerings", device=device)
        passes = self._ask("torch_pjrt_passes", device=device)
        return {n: (tables.get(n), list(passes.get(n, ()))) for n in self.plugins}

    def _add(self, name: str, plugin: ModuleType) -> None:
        try:
            refuse_unknown_hooks(name, plugin)
            self._manager.register(plugin, name)
        except Exception as error:
            self._disable(name, error)
        else:
            self.plugins[name] = plugin

    def _ask(self, hook: str, **arguments: Any) -> dict[str, Any]:
        """Each plugin's answer, where it has one. One that raises does not silence the others."""
        check: Callable[[Any], Any] = answers.CHECKS[hook]
        given: dict[str, Any] = {}
        for name in list(self.plugins):
            others = [p for n, p in self.plugins.items() if n != name]
            try:
                for answer in self._manager.subset_hook_caller(hook, others)(**arguments):
                    given[name] = check(answer)
            except Exception as error:
                if name == core_plugin.PLUGIN:
                    raise  # nothing works without the core: its own bug must show itself
                self._disable(name, error)
        return given

    def _ask_for(self, device: Device, hook: str) -> dict[str, Any]:
        """As `_ask`, about a chosen device: an error if its own plugin fails to answer."""
        given = self._ask(hook, device=device)
        for offer in self._devices or ():
            if offer.device is device and offer.plugin not in self.plugins:
                why = next(b.why for b in self.broken if b.name == offer.plugin)
                raise PluginError(
                    f"The plugin `{offer.plugin}` failed, and with it the device `{device.name}`.",
                    saw=why,
                    hint="choose another device with PJRT_DEVICE",
                )
        return given

    def _disable(self, name: str, error: Exception) -> None:
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
        self.plugins.pop(name, None)
        if all(b.name != name for b in self.broken):
            self.broken.append(Broken.of(name, error, self.origins.get(name)))

    def _named(self, wanted: str) -> Offer:
        for offer in self.offers():
            if offer.device.name.upper() == wanted:
                if (objection := self.objection(offer)) is not None:
                    raise NoDevice(
                        f"The device `{wanted}` (PJRT_DEVICE) cannot be used here.",
                        saw=objection,
                        hint="`python -m torch_pjrt devices` lists the others",
                    )
                return offer
        raise UnknownDevice(
            f"No plugin offers a device named `{wanted}` (PJRT_DEVICE).",
            saw=self._on_offer(),
            hint="`python -m torch_pjrt plugins` lists the plugins that were found",
        )

    def _on_offer(self) -> str:
        names = ", ".join(o.device.name for o in self.all_offers()) or "none"
        return f"devices on offer: {names}{self._absent()}"

    def _absent(self) -> str:
        """Which plugins could have offered more."""
        forbidden = "".join(
            f"; the plugin `{n}` is forbidden by {VARIABLE}" for n in self.forbidden
        )
        broken = "".join(f"; the plugin `{b.name}` is broken: {b.why}" for b in self.broken)
        return forbidden + broken


def _owners(
    device: Device,
    tables: Mapping[str, LoweringTable],
    what: str,
    rows: Callable[[LoweringTable], Mapping[Any, Lowering]],
) -> dict[Any, str]:
    """Which plugin has a rule for which operator. Two for one are a `DuplicateLowering`."""
    owners: dict[Any, str] = {}
    for name, table in tables.items():
        for op, row in rows(table).items():
            if op in owners:
                first = rows(tables[owners[op]])[op]
                raise DuplicateLowering(
                    f"Two plugins {what} a lowering for `{op}` on `{device.name}`.",
                    saw=f"`{owners[op]}` ({first.where}) and `{name}` ({row.where})",
                    hint=_forbid(name),
                )
            owners[op] = name
    return owners


def by_priority(offers: Iterable[Offer]) -> list[Offer]:
    """The highest first; the order of the plugins decides between equal ones."""
    return sorted(offers, key=lambda offer: -offer.device.priority)


def refuse_unknown_hooks(name: str, plugin: ModuleType) -> None:
    """Raise `PluginError` for a function that is marked `impl` and is no hook."""
    known = list(hook_names())
    for attribute, value in vars(plugin).items():
        marked = inspect.isroutine(value) and hasattr(value, f"{spec.NAME}_impl")
        if marked and attribute not in known:
            raise PluginError(
                f"The plugin `{name}` implements a hook that does not exist.",
                saw=f"`{attribute}`",
                expected=f"one of {', '.join(known)}",
            )


def hook_names() -> Iterator[str]:
    """The hooks of `spec.py`, in the order in which they are called."""
    return (n for n, f in vars(spec).items() if hasattr(f, f"{spec.NAME}_spec"))


def _forbid(plugin: str) -> str:
    return f"uninstall one, or forbid it: {VARIABLE}=-{plugin}"


@cache
def host() -> Host:
    """The host of the core and of the installed plugins that TORCH_PJRT_PLUGINS allows."""
    found: Found = discover(reserved={core_plugin.PLUGIN})
    plugins = {core_plugin.PLUGIN: core_plugin, **found.modules}
    return Host(plugins, found.broken, found.forbidden, found.origins)
