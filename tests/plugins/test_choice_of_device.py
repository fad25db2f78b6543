"""The best device that works is used: one that cannot be started is passed over, unless it was asked for.

Each case is a process of its own, in which a folder brings the plugins.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixture_types import Run
from written_plugins import with_plugin

pytestmark = pytest.mark.slow

BEST = """
from torch_pjrt.errors import DeviceError
from torch_pjrt.plugin import Device, impl

class {name}(Device):
    name = "{name}"
    priority = 500
    def objection(self):
        return {objection!r}
    def start(self):
        {start}

@impl
def torch_pjrt_devices():
    return [{name}()]
"""
FIRST_TENSOR = """
import torch
print(torch.ones(2, device="pjrt").sum().item())
from torch_pjrt.client.client import client
print(client().device.name)
"""
DEVICES = """
import sys
from torch_pjrt.cli import main
sys.exit(main(["devices", "--no-start"]))
"""

Plugin = Callable[..., dict[str, str]]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    """Puts a plugin of one device on the path; gives the environment in which it is found."""

    def make(
        plugin_name: str, *, name: str = "BEST", start: str = "", objection: str | None = None
    ) -> dict[str, str]:
        text = BEST.format(name=name, start=start or "return []", objection=objection)
        return with_plugin(tmp_path, plugin_name, text)

    return make


def test_best_device_that_cannot_be_started_is_passed_over_with_a_warning(
    python: Run, plugin: Plugin
) -> None:
    broken = plugin("best", start="raise OSError('driver 1.2 speaks to card 3.4 no more')")

    done = python(FIRST_TENSOR, **broken)

    assert done.stdout.split() == ["2.0", "CPU"]
    assert "The device `BEST` could not be started." in done.stderr
    assert "saw: OSError: driver 1.2 speaks to card 3.4 no more" in done.stderr
    assert "instead: the device `CPU` is used" in done.stderr


def test_device_that_was_asked_for_and_cannot_be_started_is_an_error(
    python: Run, plugin: Plugin
) -> None:
    broken = plugin("best", start="raise DeviceError('No card.', hint='insert it')")

    done = python(FIRST_TENSOR, returncode=1, PJRT_DEVICE="BEST", **broken)

    assert "The device `BEST` could not be started." in done.stderr
    assert "saw: No card." in done.stderr
    assert "hint: insert it" in done.stderr
    assert "CPU" not in done.stdout


def test_device_whose_library_is_missing_is_passed_over_and_named_with_its_reason(
    python: Run, plugin: Plugin
) -> None:
    missing = plugin("best", objection="libbest.so is missing")

    assert python(FIRST_TENSOR, **missing).stdout.split() == ["2.0", "CPU"]
    listed = python(DEVICES, **missing).stdout.splitlines()
    assert listed[1].split(maxsplit=3) == [
        "BEST",
        "500",
        "best",
        "not usable: libbest.so is missing",
    ]
    assert listed[-1].startswith("Chosen: CPU, of the plugin `cpu`: of the usable devices")


def test_two_plugins_of_one_device_are_an_error_that_says_how_to_choose(
    python: Run, plugin: Plugin
) -> None:
    plugin("best")
    both = plugin("better")

    done = python(DEVICES, returncode=1, **both)

    assert "DuplicateDevice: Two plugins offer a device named `BEST`." in done.stderr
    assert "forbid it: TORCH_PJRT_PLUGINS=-better" in done.stderr


def test_looking_for_devices_imports_no_jax_and_starts_none(python: Run, plugin: Plugin) -> None:
    never = plugin("best", start="raise SystemExit('started')")

    done = python(
        DEVICES.replace("sys.exit(main", "print(main") + "print('jax' in sys.modules)", **never
    )

    assert done.stdout.split()[-2:] == ["0", "False"]
