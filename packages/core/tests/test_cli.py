"""The commands list what is there, what is broken and why, and say it by their exit code."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch

from fake_device import Fake
from torch_pjrt import cli
from torch_pjrt.lowering import LoweringTable
from torch_pjrt.plugin import Device, core, impl
from torch_pjrt.plugin.discovery import Broken, Origin
from torch_pjrt.plugin.host import Host

aten = torch.ops.aten


def plugin(*devices: Device, lowers: Any = None) -> ModuleType:
    module = ModuleType("a_plugin")

    @impl
    def torch_pjrt_devices() -> Sequence[Device]:
        return devices

    @impl
    def torch_pjrt_lowerings(device: Device) -> LoweringTable | None:
        if lowers is None:
            return None
        table = LoweringTable("theirs")
        table.add(lowers, abs)
        return table

    vars(module).update(
        torch_pjrt_devices=torch_pjrt_devices, torch_pjrt_lowerings=torch_pjrt_lowerings
    )
    return module


@pytest.fixture(autouse=True)
def _no_device_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_DEVICE", raising=False)


Captured = pytest.CaptureFixture[str]


def test_all_well_is_exit_code_0(capsys: Captured) -> None:
    origins = {"mine": Origin("mine-dist 2.0", "mine.plugin")}
    host = Host({core.PLUGIN: core, "mine": plugin(Fake("CHIP", 3))}, origins=origins)

    assert cli.plugins(host) == 0

    first, *rest = capsys.readouterr().out.splitlines()
    assert first.split()[0] == "core"
    mine = next(i for i, line in enumerate(rest) if not line.startswith(" "))
    assert rest[mine : mine + 2] == [
        "mine  mine-dist 2.0          mine.plugin",
        "    device CHIP, priority 3, usable",
    ]
    assert rest[-1] == (
        "Chosen: CHIP, of the plugin `mine`: of the usable devices it has the highest priority."
    )


def test_lowerings_of_every_device_are_said_once(capsys: Captured) -> None:
    cli.plugins(Host({"mine": plugin(Fake("A"), Fake("B"), lowers=aten.exp.default)}))

    assert "    on every device: 1 lowering (aten.exp.default)\n" in capsys.readouterr().out


def test_broken_plugin_is_listed_with_the_reason_and_exit_code_1(capsys: Captured) -> None:
    origins = {"bad": Origin("bad-dist 1.0", "bad.plugin")}
    broken = [Broken("bad", "ImportError: no\n  saw: nothing", origins["bad"])]

    code = cli.plugins(Host({"mine": plugin(Fake("CHIP"))}, broken, origins=origins))

    out = capsys.readouterr().out
    assert code == 1
    assert "bad-dist 1.0" in out
    assert "    broken, disabled: ImportError: no\n      saw: nothing\n" in out
    assert "Chosen: CHIP" in out


@pytest.mark.filterwarnings("ignore:The torch-pjrt plugin `bad` failed")
def test_plugin_that_breaks_while_it_is_listed_is_listed_as_broken(capsys: Captured) -> None:
    bad = ModuleType("bad")
    vars(bad)["torch_pjrt_passes"] = impl(lambda: 1 / 0)

    assert cli.plugins(Host({"bad": bad, "mine": plugin(Fake("CHIP"))})) == 1
    assert "    broken, disabled: ZeroDivisionError: " in capsys.readouterr().out


def test_forbidden_plugin_is_listed_and_no_fault(capsys: Captured) -> None:
    assert cli.plugins(Host({"mine": plugin(Fake("CHIP"))}, forbidden=["other"])) == 0
    assert "    forbidden by TORCH_PJRT_PLUGINS\n" in capsys.readouterr().out


def test_two_devices_of_one_name_are_listed_and_an_error(capsys: Captured) -> None:
    host = Host({"a": plugin(Fake("CHIP")), "b": plugin(Fake("CHIP"))})

    assert cli.plugins(host) == 1

    printed = capsys.readouterr()
    assert printed.out.count("device CHIP, priority 0, usable") == 2
    assert printed.err.startswith("DuplicateDevice: ")
    assert "`a` and `b`" in printed.err


def test_two_rules_for_one_operator_are_an_error_said_once_for_a_device(capsys: Captured) -> None:
    op = aten.exp.default
    host = Host({"a": plugin(Fake("CHIP"), lowers=op), "b": plugin(lowers=op)})

    assert cli.plugins(host) == 1
    assert capsys.readouterr().err.count("DuplicateLowering: ") == 1


def test_devices_are_listed_by_priority_with_their_objections(capsys: Captured) -> None:
    host = Host({"mine": plugin(Fake("LOW"), Fake("HIGH", 300, "no such card"))})

    assert cli.devices(host) == 0
    assert capsys.readouterr().out.splitlines() == [
        "DEVICE  PRIORITY  PLUGIN  STATE",
        "HIGH    300       mine    not usable: no such card",
        "LOW     0         mine    usable",
        "Chosen: LOW, of the plugin `mine`: of the usable devices it has the highest priority.",
    ]


def test_no_usable_device_is_exit_code_1(capsys: Captured) -> None:
    assert cli.devices(Host({"mine": plugin(Fake("CARD", 0, "no such card"))})) == 1
    assert "NoDevice: " in capsys.readouterr().err


def test_device_that_the_variable_names_is_the_chosen_one(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PJRT_DEVICE", "low")

    assert cli.devices(Host({"mine": plugin(Fake("LOW"), Fake("HIGH", 9))})) == 0
    assert "Chosen: LOW, of the plugin `mine`: PJRT_DEVICE names it." in capsys.readouterr().out


class Chip:
    """As much of a PJRT device as the list says."""

    device_kind = "Chip 3"

    def __init__(self, number: int, process: int = 0, coords: list[int] | None = None) -> None:
        self.id, self.process_index, self.coords = 10 + number, process, coords


class Startable(Fake):
    """A device with the chips that it is given."""

    def __init__(self, chips: Sequence[Any]) -> None:
        super().__init__("CARD")
        self._chips = chips

    def start(self) -> Sequence[Any]:
        return self._chips


def test_chips_of_the_chosen_device_are_listed_with_what_pjrt_tells_of_them(
    capsys: Captured,
) -> None:
    chips = [Chip(n, n // 2, [n % 2, n // 2, 0]) for n in range(4)]

    assert cli.devices(Host({"mine": plugin(Startable(chips))}), start=True) == 0

    listed = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert listed == [
        "4 chips of CARD: Chip 3, 2 x 2, 2 processes",
        "CHIP  ID  COORDINATES  PROCESS",
        "0     10  0,0,0        0",
        "1     11  1,0,0        0",
        "2     12  0,1,0        1",
        "3     13  1,1,0        1",
    ]


def test_many_chips_are_listed_in_part(capsys: Captured) -> None:
    cli.devices(Host({"mine": plugin(Startable([Chip(n) for n in range(100)]))}), start=True)

    *_, before, last = capsys.readouterr().out.splitlines()
    assert before.split() == ["63", "73", "0"]
    assert last == "36 more"


def test_device_that_does_not_start_is_exit_code_1(capsys: Captured) -> None:
    assert cli.devices(Host({"mine": plugin(Fake("CARD"))}), start=True) == 1

    assert "CARD does not start: AssertionError: started" in capsys.readouterr().err


def test_target_that_no_plugin_knows_is_exit_code_1(capsys: Captured) -> None:
    assert cli.main(["devices", "nowhere:7"]) == 1

    assert "No plugin compiles for `nowhere:7`" in capsys.readouterr().err
