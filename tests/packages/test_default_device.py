"""What a package makes on the host says so: `torch.set_default_device` moves every other factory's result."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils._device import _device_constructors

ROOT = Path(__file__).parents[2]
# They leave a tensor that is given on its device.
KEEP_THEIRS = (torch.as_tensor, torch.asarray)
FACTORIES = {f.__name__ for f in _device_constructors() if f not in KEEP_THEIRS}
# A command of its own, and what runs as tests.
LEFT_OUT = ("tuning/bench.py", "/testing/")


def calls(path: Path) -> Iterator[tuple[str, bool]]:
    """The factories that a file calls, and whether each call has a device."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = ast.unparse(node.func)
            if name.startswith("torch.") and node.func.attr in FACTORIES:
                has_device = any(k.arg in ("device", None) for k in node.keywords)
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}", has_device


def test_each_factory_has_a_device() -> None:
    sources = [
        path
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        if not any(part in path.as_posix() for part in LEFT_OUT)
    ]
    found = [call for path in sources for call in calls(path)]

    assert len(found) > 80
    assert [where for where, has_device in found if not has_device] == []
