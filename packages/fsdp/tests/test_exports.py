"""A checkpoint becomes files that Hugging Face's libraries load, and the host has little of it at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from torch_pjrt_fsdp import export_safetensors, save_checkpoint
from torch_pjrt_fsdp.checkpoint.__main__ import main
from torch_pjrt_spmd import CheckpointError, load_safetensors

safetensors: Any = pytest.importorskip("safetensors.torch")


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8))


@pytest.mark.parametrize("most_bytes", [None, 3000])
def test_what_is_exported_is_what_the_library_reads(most_bytes: int | None, tmp_path: Path) -> None:
    net = model()
    save_checkpoint({"model": net, "other": torch.ones(3)}, tmp_path / "step-1")

    files = export_safetensors(
        tmp_path / "step-1", tmp_path / "model.safetensors", most_bytes=most_bytes
    )

    found: dict[str, torch.Tensor] = {}
    for file in files:
        found |= safetensors.load_file(file)
        with safetensors.safe_open(file, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    wanted = net.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], x) for name, x in wanted.items())
    assert len(files) == (1 if most_bytes is None else 2)
    if most_bytes is not None:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["weight_map"]["0.weight"] == "model-00001-of-00002.safetensors"
        assert index["metadata"]["total_size"] == sum(x.nbytes for x in wanted.values())


def test_it_comes_back_onto_the_device(tmp_path: Path) -> None:
    net = model()
    save_checkpoint({"model": net}, tmp_path / "step-1")
    export_safetensors(tmp_path / "step-1", tmp_path / "model.safetensors", most_bytes=3000)
    again = model(1).to("pjrt")

    load_safetensors(again, tmp_path / "model.safetensors.index.json")

    for name, x in again.state_dict().items():
        assert torch.equal(x.cpu(), net.state_dict()[name])


def test_dtypes_and_names_can_be_others(tmp_path: Path) -> None:
    net = model()
    save_checkpoint({"net": net}, tmp_path / "step-1")

    [file] = export_safetensors(
        tmp_path / "step-1",
        tmp_path / "model.safetensors",
        key="net",
        dtype=torch.bfloat16,
        rename=lambda name: None if name.startswith("1.") else f"layers.{name}",
    )

    found = safetensors.load_file(file)
    assert sorted(found) == ["layers.0.bias", "layers.0.weight", "layers.2.bias", "layers.2.weight"]
    assert torch.equal(found["layers.0.weight"], net.state_dict()["0.weight"].bfloat16())
    with pytest.raises(CheckpointError, match=r"nothing to export.*\n.*'model'\n.*net"):
        export_safetensors(tmp_path / "step-1", tmp_path / "model.safetensors")


def test_the_command_lists_verifies_and_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "step-1"
    save_checkpoint({"model": model(), "step": 1}, folder)

    assert main(["list", str(tmp_path)]) == 0
    assert main(["verify", str(folder)]) == 0
    assert main(["export", str(folder), str(tmp_path / "m.safetensors"), "--dtype", "float16"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("1", "9 tensors of 3752 bytes and 1 objects are intact", str(tmp_path / "m.safetensors"))
    ]
    file = folder / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[2000] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(folder)]) == 1
    assert "__0_0.distcp" in capsys.readouterr().err


MEASURED = """
import resource, sys, torch
from torch_pjrt_fsdp import export_safetensors, save_checkpoint
from torch_pjrt_fsdp.checkpoint.stored import Stored

def peak():  # since the last look
    with open("/proc/self/status") as status:
        found = next(int(l.split()[1]) * 1024 for l in status if l.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return found

folder = sys.argv[1]
export_safetensors(folder + "/small", folder + "/small.safetensors")  # imports what it imports
peak()
before = peak()
export_safetensors(folder + "/large", folder + "/large.safetensors", most_bytes=1)
print(peak() - before)
"""


def test_the_host_has_a_small_part_of_one_tensor_at_a_time(tmp_path: Path) -> None:
    """The most that the process has had in memory, of which the kernel keeps account."""
    largest = 1 << 26
    state = {
        "a": torch.zeros(largest // 4).view(-1, 1024),
        "b": torch.zeros(largest // 8, dtype=torch.int32),
        "c": torch.zeros(3, largest // 12),
    }
    save_checkpoint({"model": {"x": torch.ones(2)}}, tmp_path / "small")
    save_checkpoint({"model": state}, tmp_path / "large")
    del state

    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.2 * largest
