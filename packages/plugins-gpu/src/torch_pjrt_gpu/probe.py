"""What this machine has for GPUs, found out in milliseconds: files of drivers, and versions of packages.

Nothing is loaded: not JAX, not its plugins, not CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

Version = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Stack:
    """One way to drive a GPU.

    platform    JAX's name.
    hardware    whose cards, in words.
    files       those of which the driver makes at least one.
    plugins     the distributions of JAX's plugin, by the least version of the driver that each needs.
    extra       the extra of our package that brings the newest plugin.
    """

    platform: str
    hardware: str
    files: Sequence[str]
    plugins: Mapping[str, int]
    extra: str


# Drivers: https://docs.nvidia.com/deploy/cuda-compatibility ("minor version compatibility").
STACKS = (
    Stack(
        "cuda",
        "NVIDIA",
        ("dev/nvidiactl", "dev/nvidia0", "dev/dxg"),
        {"jax-cuda13-plugin": 580, "jax-cuda12-plugin": 525},
        "cuda13",
    ),
    Stack("rocm", "AMD", ("dev/kfd",), {"jax-rocm7-plugin": 0, "jax-rocm60-plugin": 0}, "rocm"),
)

_DRIVER = "proc/driver/nvidia/version"


@dataclass(frozen=True, slots=True)
class Finding:
    """The stack that fits this machine, or what is in the way; `plugin` is JAX's, a distribution."""

    stack: Stack | None
    objection: str | None
    plugin: str | None = None


def find(root: Path = Path("/"), version: Version = version) -> Finding:
    """The first stack of which driver and plugin are there and fit; else the objection to the likeliest.

    root     where the files of drivers are looked for.
    version  gives the version of an installed distribution, or raises `PackageNotFoundError`.
    """
    present = [s for s in STACKS if any((root / f).exists() for f in s.files)]
    if not present:
        looked = ", ".join(f"/{s.files[0]} ({s.hardware})" for s in STACKS)
        return Finding(None, f"no driver of a GPU is there: {looked}")
    findings = [_judged(stack, root, version) for stack in present]
    return next((f for f in findings if f.objection is None), findings[0])


def _judged(stack: Stack, root: Path, version: Version) -> Finding:
    installed = {name: v for name in stack.plugins if (v := _version(name, version))}
    if not installed:
        return Finding(
            None,
            f"the {stack.hardware} driver is there, but not JAX's plugin for it: "
            f'pip install "torch-pjrt-gpu[{stack.extra}]"',
        )
    if len(installed) > 1:
        names = " and ".join(f"{name} {v}" for name, v in installed.items())
        return Finding(
            None,
            f"two plugins want to be JAX's platform `{stack.platform}`: {names}; uninstall one",
        )
    [(name, found)] = installed.items()
    jaxlib = _version("jaxlib", version)
    if stack.platform == "cuda" and _numbers(found) != _numbers(jaxlib or ""):
        return Finding(
            None,
            f"{name} is version {found}, jaxlib {jaxlib}: they must be the same; "
            f'pip install "{name}=={jaxlib}"',
        )
    driver, needed = _driver(root), stack.plugins[name]
    if driver is not None and driver < needed:
        return Finding(
            None,
            f"the driver is version {driver}, {name} needs {needed} or later: update the driver"
            + (', or pip install "torch-pjrt-gpu[cuda12]"' if driver >= 525 else ""),
        )
    return Finding(stack, None, name)


def _version(name: str, version: Version) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> str:
    """The release of a version, without what comes after (`0.10.2.dev3+g12`)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return found.group() if found else ""


def _driver(root: Path) -> int | None:
    """The first number of the NVIDIA driver's version; None where it cannot be read."""
    try:
        text = (root / _DRIVER).read_text()
    except OSError:
        return None
    found = re.search(r"\s(\d{3,4})\.\d+", text)
    return int(found.group(1)) if found else None
