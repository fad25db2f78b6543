"""Find the installed plugins: one entry point of the group `torch_pjrt` each.

A plugin that cannot be imported is recorded with the reason and a warning, and the others are
loaded. `TORCH_PJRT_PLUGINS` allows or forbids by name: `cpu,mine` loads these only, `-mine` all but
this. The core itself cannot be forbidden.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType

from torch_pjrt.errors import PluginError, SettingError
from torch_pjrt.overloads import absent_operator

GROUP = "torch_pjrt"
VARIABLE = "TORCH_PJRT_PLUGINS"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a plugin comes from. Two plugins of one name differ in this.

    distribution    name and version of what was installed: `torch-pjrt-cpu 0.1.0`.
    entry_point     what the entry point names: `torch_pjrt_cpu.plugin`.
    """

    distribution: str
    entry_point: str

    def __str__(self) -> str:
        return f"{self.distribution} ({self.entry_point})"


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin that failed, and why."""

    name: str
    why: str
    origin: Origin | None = None

    @classmethod
    def of(cls, name: str, error: BaseException, origin: Origin | None = None) -> Broken:
        """Record it and warn once."""
        error = absent_operator(error) or error
        why = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        warnings.warn(f"The torch-pjrt plugin `{name}` failed and is disabled: {why}", stacklevel=2)
        return cls(name, why, origin)


@dataclass(slots=True)
class Found:
    """What discovery found, by plugin name in sorted order. A plugin is in one of the three."""

    modules: dict[str, ModuleType] = field(default_factory=dict)
    forbidden: list[str] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)


def discover(reserved: Iterable[str] = ()) -> Found:
    """Load every allowed plugin; no plugin may have a name that is `reserved`.

    Two distributions with plugins of one name are both disabled: loading one of them would depend
    on their order. Raises `SettingError` for a malformed TORCH_PJRT_PLUGINS, and nothing else.
    """
    is_allowed = _filter(os.environ.get(VARIABLE, ""))
    found = Found()
    for name, entry_points in _by_name():
        origins = [_origin(e) for e in entry_points]
        found.origins[name] = origins[0]
        if not is_allowed(name):
            found.forbidden.append(name)
            continue
        try:
            if name in reserved:
                raise PluginError("The name is taken by torch-pjrt itself.", saw=str(origins[0]))
            if len(origins) > 1:
                raise PluginError(
                    "Two plugins have this name.",
                    saw=" and ".join(map(str, origins)),
                    hint=f"uninstall one, or forbid both: {VARIABLE}=-{name}",
                )
            found.modules[name] = _load(entry_points[0])
        except (Exception, SystemExit) as error:
            found.broken.append(Broken.of(name, error, origins[0]))
    return found


def _by_name() -> Iterator[tuple[str, list[importlib.metadata.EntryPoint]]]:
    """The entry points of our group by name, each once even if its folder is on the path twice."""
    named: dict[str, dict[Origin, importlib.metadata.EntryPoint]] = {}
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        named.setdefault(entry_point.name, {}).setdefault(_origin(entry_point), entry_point)
    for name in sorted(named):
        yield name, [named[name][o] for o in sorted(named[name], key=str)]


def _origin(entry_point: importlib.metadata.EntryPoint) -> Origin:
    distribution = entry_point.dist
    source = f"{distribution.name} {distribution.version}" if distribution else "unknown"
    return Origin(source, entry_point.value)


def _load(entry_point: importlib.metadata.EntryPoint) -> ModuleType:
    plugin = entry_point.load()
    if not isinstance(plugin, ModuleType):
        raise PluginError(
            "The entry point does not name a module.",
            saw=f"`{entry_point.value}`, a {type(plugin).__name__}",
            expected="a module whose functions are marked `impl`",
        )
    return plugin


def _filter(setting: str) -> _Filter:
    words = [w.strip() for w in setting.split(",") if w.strip()]
    forbidden = {w[1:].strip() for w in words if w.startswith("-")}
    allowed = {w for w in words if not w.startswith("-")}
    if (allowed and forbidden) or "" in forbidden:
        raise SettingError(
            f"{VARIABLE} cannot be read.",
            saw=f"`{setting}`",
            expected="either names to allow (`cpu,mine`) or names to forbid (`-mine,-other`)",
        )
    return _Filter(allowed, forbidden)


@dataclass(frozen=True, slots=True)
class _Filter:
    allowed: set[str]
    forbidden: set[str]

    def __call__(self, name: str) -> bool:
        return name in self.allowed if self.allowed else name not in self.forbidden
