"""The scripts in `examples/` that need no library beside our packages: what they print, beside the CPU's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from example_scripts import EXAMPLES, printed


def last_loss(text: str) -> float:
    [found] = re.findall(r"last loss ([\d.]+)", text)
    return float(found)


@pytest.mark.slow
def test_training_on_eight_chips_is_that_on_the_cpu() -> None:
    on_chips = printed("train_spmd.py", chips=8)
    on_cpu = printed("train_spmd.py", "--device", "cpu")

    assert "on pjrt; 0.weight by columns, 2.weight by rows" in on_chips
    assert last_loss(on_chips) == pytest.approx(last_loss(on_cpu), abs=2e-4)


@pytest.mark.slow
def test_two_processes_of_fsdp_train_as_gloo_does() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ours = printed("train_fsdp.py", launcher=torchrun)
    gloo = printed("train_fsdp.py", "--device", "cpu", launcher=torchrun)

    [(held, whole)] = re.findall(r"holds (\d+) of (\d+) numbers", ours)
    assert "on pjrt" in ours
    assert int(held) == int(whole) // 2
    assert last_loss(ours) == pytest.approx(last_loss(gloo), abs=2e-4)


@pytest.mark.slow
def test_exported_model_runs_without_pytorch(tmp_path: Path) -> None:
    said = printed("export_model.py", "--folder", str(tmp_path / "model"))

    [right] = re.findall(r"(\d+)% of 100 digits right without PyTorch", said)
    [difference] = re.findall(r"at most ([\d.e-]+)", said)
    assert int(right) > 80
    assert float(difference) < 1e-4


def test_each_example_is_in_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()

    assert not [path.name for path in EXAMPLES.glob("*.py") if path.name not in readme]
