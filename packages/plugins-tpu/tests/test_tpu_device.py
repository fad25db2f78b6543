"""The TPU device is preferred to all others where it is usable, and says what is missing elsewhere."""

from __future__ import annotations

from pathlib import Path

from torch_pjrt.testing.hosts import Host
from torch_pjrt_tpu import plugin, probe


def chip(root: Path, number: int, vendor: str, device: str) -> None:
    folder = root / f"sys/bus/pci/devices/0000:00:{number:02}.0"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")


def test_plugin_offers_one_device_and_starts_nothing() -> None:
    [offer] = Host({"tpu": plugin}).offers()

    assert (offer.device.name, offer.device.priority) == ("TPU", 300)


def test_machine_without_chips_is_told_where_was_looked(tmp_path: Path) -> None:
    chip(tmp_path, 1, "0x1ae0", "0x0042")  # Google's network card
    chip(tmp_path, 2, "0x10de", "0x0063")

    assert probe.objection(tmp_path) == (
        "no TPU chip is there: none on the PCI bus, no /dev/accel0"
    )


def test_chips_without_the_library_are_told_what_to_install(tmp_path: Path) -> None:
    chip(tmp_path, 1, "0x1ae0", "0x0063")
    chip(tmp_path, 2, "0x1ae0", "0x0063")

    objection = probe.objection(tmp_path, lambda: False)

    assert objection == (
        "TPU chips are there (v5e, v5e), but not the library that drives them: "
        'pip install "torch-pjrt-tpu[libtpu]"'
    )
    assert probe.objection(tmp_path, lambda: True) is None


def test_files_of_the_driver_count_where_the_bus_does_not_tell(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()

    assert probe.chips(tmp_path) == ["/dev/accel0"]


def test_library_may_be_named_by_a_variable(tmp_path: Path) -> None:
    library = tmp_path / "libtpu.so"
    library.touch()

    assert probe.libtpu({"TPU_LIBRARY_PATH": str(library)})
