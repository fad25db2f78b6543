"""A PJRT plugin needs no package: a library is named by a variable, and JAX's own plugins are found."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fixture_types import Run
from written_plugins import with_plugin

pytestmark = pytest.mark.slow

FIRST_TENSOR = """
import torch
print((torch.arange(3, device="pjrt") * 2).tolist())
from torch_pjrt.client.client import client
print(client().device.name)
import jax
print(jax.default_backend())
"""
DEVICES = """
import sys
from torch_pjrt.cli import main
sys.exit(main(["devices", "--no-start"]))
"""

# What a vendor ships for JAX; its client is XLA's for the CPU.
JAX_PLUGIN = """
from jax._src import xla_bridge

def initialize():
    xla_bridge.register_backend_factory(
        "acme", xla_bridge.make_cpu_client, priority=-5, experimental=True
    )
"""


def test_plugin_of_jax_is_found_by_its_entry_point_and_started_by_name(
    python: Run, tmp_path: Path
) -> None:
    acme = with_plugin(tmp_path, "acme", JAX_PLUGIN, group="jax_plugins")

    done = python(FIRST_TENSOR, PJRT_DEVICE="ACME", **acme)
    listed = python(DEVICES, **acme)

    assert done.stdout.splitlines() == ["[0, 2, 4]", "ACME", "cpu"]
    assert ["ACME", "-100", "core", "usable"] in [
        line.split() for line in listed.stdout.splitlines()
    ]
    assert "Chosen: CPU" in listed.stdout


# The same vendor's package.
PACKAGE = """
import jax
from torch_pjrt.plugin import Device, impl

class Acme(Device):
    name = "ACME"
    priority = 5

    def objection(self):
        return None

    def start(self):
        return jax.devices("cpu")

@impl
def torch_pjrt_devices():
    return [Acme()]
"""


def test_a_package_for_a_plugin_of_jax_takes_its_place(python: Run, tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "ours").mkdir()
    plugin = with_plugin(tmp_path / "jax", "acme", JAX_PLUGIN, group="jax_plugins")
    package = with_plugin(tmp_path / "ours", "torch_acme", PACKAGE)
    both = {"PYTHONPATH": f"{package['PYTHONPATH']}:{plugin['PYTHONPATH']}"}

    listed = python(DEVICES, **both).stdout

    assert ["ACME", "5", "torch_acme", "usable"] in [line.split() for line in listed.splitlines()]
    assert listed.count("ACME") == 2, "and it is chosen"


def test_library_that_is_not_there_is_an_error_that_names_it(python: Run) -> None:
    done = python(
        FIRST_TENSOR, returncode=1, PJRT_DEVICE="MINE", TORCH_PJRT_LIBRARY="/nowhere/libmine.so"
    )

    assert "The device `MINE` (PJRT_DEVICE) cannot be used here." in done.stderr
    assert "TORCH_PJRT_LIBRARY=/nowhere/libmine.so: there is no such file" in done.stderr


def test_file_that_is_no_library_is_an_error_that_names_it(python: Run, tmp_path: Path) -> None:
    library = tmp_path / "libmine.so"
    library.write_text("no library")

    done = python(FIRST_TENSOR, returncode=1, PJRT_DEVICE="MINE", TORCH_PJRT_LIBRARY=str(library))

    assert "The device `MINE` could not be started." in done.stderr
    assert "The library of the device `mine` could not be loaded." in done.stderr
    assert str(library) in done.stderr


def test_library_without_a_name_is_an_error_that_asks_for_one(python: Run) -> None:
    done = python(FIRST_TENSOR, returncode=1, TORCH_PJRT_LIBRARY="/some/libmine.so")

    assert "TORCH_PJRT_LIBRARY names a library, but no device." in done.stderr
    assert "expected: a name for the device in PJRT_DEVICE" in done.stderr


@pytest.mark.skipif(
    find_spec("jax_plugins") is None or find_spec("jax_plugins.xla_cuda13") is None,
    reason="JAX's CUDA plugin is not installed (`hatch run aot:run` does)",
)
def test_library_is_loaded_and_asked_for_a_client(python: Run) -> None:
    spec = find_spec("jax_plugins.xla_cuda13")
    assert spec is not None and spec.origin is not None
    library = Path(spec.origin).with_name("xla_cuda_plugin.so")

    done = python(
        FIRST_TENSOR,
        returncode=None,
        PJRT_DEVICE="MINE",
        TORCH_PJRT_LIBRARY=str(library),
        TORCH_PJRT_CLIENT_OPTIONS="preallocate=false",
        JAX_PLATFORMS="cpu",
    )

    if done.returncode:  # no card
        assert "The device `MINE` could not be started." in done.stderr
        assert "CUDA" in done.stderr
    else:
        assert done.stdout.splitlines()[:2] == ["[0, 2, 4]", "MINE"]
