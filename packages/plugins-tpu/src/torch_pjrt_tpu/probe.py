"""Whether this machine has TPU chips and the library that drives them, found out in milliseconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

# Google's number on the PCI bus, and what the chips that are TPUs call themselves there; on some machines
# only the driver's files tell.
_GOOGLE = "0x1ae0"
_CHIPS = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "7x",
}


def chips(root: Path = Path("/")) -> list[str]:
    """The kind of each TPU chip on the PCI bus, or the driver's files where the bus does not tell."""
    found = []
    for vendor in sorted(root.glob("sys/bus/pci/devices/*/vendor")):
        if _text(vendor) == _GOOGLE:
            kind = _CHIPS.get(_text(vendor.with_name("device")))
            found += [kind] if kind else []
    return found or [f"/{p.relative_to(root)}" for p in sorted(root.glob("dev/accel[0-9]*"))]


def libtpu(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the library is there: named by TPU_LIBRARY_PATH, or installed. It is not loaded."""
    named = environment.get("TPU_LIBRARY_PATH")
    return bool(named and Path(named).is_file()) or find_spec("libtpu") is not None


def objection(root: Path = Path("/"), has_libtpu: Callable[[], bool] = libtpu) -> str | None:
    """Why no TPU can be used here; None if one can."""
    found = chips(root)
    if not found:
        return "no TPU chip is there: none on the PCI bus, no /dev/accel0"
    if not has_libtpu():
        return (
            f"TPU chips are there ({', '.join(found)}), but not the library that drives them: "
            'pip install "torch-pjrt-tpu[libtpu]"'
        )
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
