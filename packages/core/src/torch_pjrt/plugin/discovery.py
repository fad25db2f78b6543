"""Find the installed plugins: one entry point of the group `torch_pjrt` each.

A plugin that cannot be imported is recorded with the reason and a warning, and the others are loaded.
`TORCH_PJRT_PLUGINS` allows or forbids by name: `cpu,mine` loads these only, `-mine` all but this.
"""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from dataclasses import dataclass, field
from types import ModuleType

from torch_pjrt.errors import SettingError

GROUP = "torch_pjrt"
VARIABLE = "TORCH_PJRT_PLUGINS"


@dataclass(frozen=True, slots=True)
class Broken:
    """A plugin that failed, and why."""

    name: str
    why: str

    @classmethod
    def of(cls, name: str, error: Exception) -> Broken:
        """Record it and warn once."""
        why = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"The torch-pjrt plugin `{name}` failed and is disabled: {why}", stacklevel=2
        )
        return cls(name, why)


@dataclass(slots=True)
class Found:
    """What discovery found: modules and where they come from, by plugin name in sorted order."""

    modules: dict[str, ModuleType] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    forbidden: list[str] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)


def discover() -> Found:
    """Load every allowed plugin. Raises `SettingError` for a malformed TORCH_PJRT_PLUGINS only."""
    is_allowed = _filter(os.environ.get(VARIABLE, ""))
    found = Found()
    entry_points = importlib.metadata.entry_points(group=GROUP)
    for entry_point in sorted(entry_points, key=lambda e: (e.name, e.value)):
        name = entry_point.name
        distribution = entry_point.dist
        source = f"{distribution.name} {distribution.version}" if distribution else "unknown"
        found.sources[name] = f"{source} ({entry_point.value})"
        if not is_allowed(name):
            found.forbidden.append(name)
            continue
        if name in found.modules:
            found.broken.append(Broken(name, f"a second plugin of this name, from {source}"))
            continue
        try:
            found.modules[name] = entry_point.load()
        except Exception as error:
            found.broken.append(Broken.of(name, error))
    return found


def _filter(setting: str) -> _Filter:
    words = [w.strip() for w in setting.split(",") if w.strip()]
    forbidden = {w[1:] for w in words if w.startswith("-")}
    allowed = {w for w in words if not w.startswith("-")}
    if allowed and forbidden:
        raise SettingError(
            f"{VARIABLE} both allows and forbids.",
            saw=setting,
            expected="either names to allow (`cpu,mine`) or names to forbid (`-mine`)",
        )
    return _Filter(allowed, forbidden)


@dataclass(frozen=True, slots=True)
class _Filter:
    allowed: set[str]
    forbidden: set[str]

    def __call__(self, name: str) -> bool:
        return name in self.allowed if self.allowed else name not in self.forbidden
