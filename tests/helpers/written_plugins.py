"""Plugins that a test writes into a folder, found as installed ones are."""

from __future__ import annotations

import os
from pathlib import Path


def with_plugin(
    folder: Path, name: str, source: str, *, group: str = "torch_pjrt"
) -> dict[str, str]:
    """Write a plugin of this name; the environment of a process that finds it, and others of the folder."""
    info = folder / f"{name}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
    (folder / f"{name}.py").write_text(source)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
