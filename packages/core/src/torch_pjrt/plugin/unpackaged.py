"""Devices that have a PJRT plugin and no package of ours: a library that a variable names, JAX's own plugins.

    PJRT_DEVICE=NAME TORCH_PJRT_LIBRARY=/path/to/plugin.so TORCH_PJRT_CLIENT_OPTIONS=name=value,...

Such devices are used only where PJRT_DEVICE names them: nothing is known of what they can do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from torch_pjrt.errors import DeviceError, SettingError
from torch_pjrt.plugin.device import Device
from torch_pjrt.plugin.jax_backend import (
    jax_plugins,
    library_chips,
    platform_chips,
    platforms_of_plugins,
)

if TYPE_CHECKING:
    import jax

LIBRARY = "TORCH_PJRT_LIBRARY"

# JAX's plugins that packages of ours drive.
_OURS = ("cuda", "rocm", "tpu")
# Below the CPU: chosen by name alone.
_PRIORITY = -100


class OfLibrary(Device):
    """What the PJRT plugin in a shared library drives."""

    priority = _PRIORITY

    def __init__(self, name: str, path: str) -> None:
        self.name = name.upper()
        self._path = path

    def objection(self) -> str | None:
        if not Path(self._path).is_file():
            return f"{LIBRARY}={self._path}: there is no such file"
        return None

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        return library_chips(self.name.lower(), self._path)

    def fingerprint(self) -> str:
        """The library, by its time stamp: the compiler is in it."""
        found = Path(self._path).stat()
        return f"{self._path} {found.st_size} {found.st_mtime_ns}"


class OfJaxPlugin(Device):
    """What a PJRT plugin that was made for JAX drives, by the name of its entry point."""

    priority = _PRIORITY

    def __init__(self, entry_point: EntryPoint) -> None:
        self.name = entry_point.name.upper()
        self._entry_point = entry_point

    def objection(self) -> str | None:
        return None

    def start(self) -> Sequence[jax.Device]:  # pyright: ignore[reportInvalidTypeForm]
        name = self.name.lower()
        platforms = platforms_of_plugins()
        for platform in (name, *platforms):
            if platform in platforms and (platform in name or name in platform):
                return platform_chips(platform)
        raise DeviceError(
            f"No platform of JAX goes with the plugin `{self._entry_point.name}`.",
            saw=f"platforms {', '.join(platforms) or 'none'}",
            expected="one whose name is part of the plugin's",
        )

    def fingerprint(self) -> str:
        """The version of the distribution."""
        dist = self._entry_point.dist
        return f"{dist.name} {dist.version}" if dist else self._entry_point.value


def devices() -> Iterator[Device]:
    """Those that variables and JAX's entry points name. Loads nothing; `SettingError` without PJRT_DEVICE."""
    path = os.environ.get(LIBRARY, "").strip()
    if path:
        name = os.environ.get("PJRT_DEVICE", "").strip()
        if not name:
            raise SettingError(
                f"{LIBRARY} names a library, but no device.",
                saw=path,
                expected="a name for the device in PJRT_DEVICE",
            )
        yield OfLibrary(name, path)
    for entry_point in jax_plugins():
        if not any(ours in entry_point.name for ours in _OURS):
            yield OfJaxPlugin(entry_point)
