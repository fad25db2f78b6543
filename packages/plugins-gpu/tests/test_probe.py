"""The probe says what fits and what is in the way, from files of drivers and versions of packages alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from torch_pjrt_gpu.probe import find

JAXLIB = {"jaxlib": "0.10.2"}


def installed(**versions: str) -> Callable[[str], str]:
    """Versions by the names of distributions, with underscores."""
    known = {name.replace("_", "-"): v for name, v in (JAXLIB | versions).items()}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    return version


def machine(root: Path, *files: str, driver: str | None = None) -> Path:
    """A root folder with these files, and with an NVIDIA driver of that version."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("")
    if driver is not None:
        machine(root, "proc/driver/nvidia/version")
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build\n"
        (root / "proc/driver/nvidia/version").write_text(text)
    return root


def test_machine_without_a_driver_is_told_where_was_looked(tmp_path: Path) -> None:
    found = find(tmp_path, installed())

    assert found.objection == (
        "no driver of a GPU is there: /dev/nvidiactl (NVIDIA), /dev/kfd (AMD)"
    )


@pytest.mark.parametrize(
    ("file", "plugin", "platform"),
    [
        ("dev/nvidiactl", {"jax_cuda13_plugin": "0.10.2"}, "cuda"),
        ("dev/dxg", {"jax_cuda12_plugin": "0.10.2.dev1+g5"}, "cuda"),
        ("dev/kfd", {"jax_rocm7_plugin": "0.9.9"}, "rocm"),
    ],
)
def test_driver_with_its_plugin_is_usable(
    tmp_path: Path, file: str, plugin: dict[str, str], platform: str
) -> None:
    found = find(machine(tmp_path, file), installed(**plugin))

    assert found.objection is None
    assert found.stack is not None
    assert found.stack.platform == platform
    assert found.plugin == next(iter(plugin)).replace("_", "-")


def test_driver_without_a_plugin_is_told_what_to_install(tmp_path: Path) -> None:
    found = find(machine(tmp_path, "dev/nvidia0"), installed())

    assert found.objection == (
        "the NVIDIA driver is there, but not JAX's plugin for it: "
        'pip install "torch-pjrt-gpu[cuda13]"'
    )


def test_plugin_of_another_version_than_jaxlib_is_told_so(tmp_path: Path) -> None:
    found = find(machine(tmp_path, "dev/nvidia0"), installed(jax_cuda13_plugin="0.10.1"))

    assert found.objection is not None
    assert "jax-cuda13-plugin is version 0.10.1, jaxlib 0.10.2: they must be the same" in (
        found.objection
    )


def test_old_driver_is_told_what_would_run_on_it(tmp_path: Path) -> None:
    root = machine(tmp_path, "dev/nvidia0", driver="535.183.01")

    found = find(root, installed(jax_cuda13_plugin="0.10.2"))

    assert found.objection is not None
    assert "the driver is version 535, jax-cuda13-plugin needs 580 or later" in found.objection
    assert "torch-pjrt-gpu[cuda12]" in found.objection
    assert find(root, installed(jax_cuda12_plugin="0.10.2")).objection is None


def test_two_plugins_for_one_platform_are_told_apart_by_the_user(tmp_path: Path) -> None:
    both = installed(jax_cuda13_plugin="0.10.2", jax_cuda12_plugin="0.10.2")

    found = find(machine(tmp_path, "dev/nvidia0"), both)

    assert found.objection is not None
    assert "two plugins want to be JAX's platform `cuda`" in found.objection


def test_card_of_another_vendor_is_used_where_the_first_one_has_no_plugin(tmp_path: Path) -> None:
    root = machine(tmp_path, "dev/nvidia0", "dev/kfd")

    found = find(root, installed(jax_rocm7_plugin="0.10.2"))

    assert found.stack is not None
    assert found.stack.platform == "rocm"
