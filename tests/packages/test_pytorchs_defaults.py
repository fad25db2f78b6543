"""What PyTorch's defaults would change names what it wants: a device, the dtype of a call."""

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
    """`torch.set_default_device` moves the results of others, of what is made on the host, too."""
    sources = [
        path
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        if not any(part in path.as_posix() for part in LEFT_OUT)
    ]
    found = [call for path in sources for call in calls(path)]

    assert len(found) > 80
    assert [where for where, has_device in found if not has_device] == []


def test_rules_ask_for_the_default_dtype_of_the_call() -> None:
    """They are traced later, when another may be in force: `lowering.promote.default_dtype` says which."""
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("packages/*/src/**/*.py")
        if "get_default_dtype" in path.read_text() and "/testing/" not in path.as_posix()
    }

    core = "packages/core/src/torch_pjrt"
    assert asking == {
        f"{core}/compile/build.py",  # whether it is still the one of the call
        f"{core}/graph/signature.py",  # when the call is learnt
        f"{core}/lowering/promote.py",
        f"{core}/replays/outside.py",  # whether a captured step is to be observed anew
        f"{core}/tensor/kernels/creation.py",  # in the call
        f"{core}/tensor/padding/recorded.py",
        f"{core}/tensor/recording/argument_binding.py",
        f"{core}/tensor/recording/kernel_source.py",
    }
