"""Files of a checkout of PyTorch run redirected to the device: in a team, by threads, or alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from suite_runs import run_suite

from torch_pjrt_spmd.testing.distributed_suite.checkout import files_of
from torch_pjrt_spmd.testing.distributed_suite.redirect import load_file

FILE = """
import unittest

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.common_distributed import skip_if_lt_x_gpu
from torch.testing._internal.common_fsdp import FSDPTest, FSDPTestMultiThread, get_devtype

device = torch.device(get_devtype())


class TestTeam(FSDPTest):
    @property
    def world_size(self):
        return min(4, torch.get_device_module(device).device_count())

    @skip_if_lt_x_gpu(2)
    def test_sum(self):
        x = torch.full((2,), self.rank + 1.0).cuda()
        dist.all_reduce(x)
        self.assertEqual(x.tolist(), [3.0, 3.0])
        self.assertEqual(dist.get_world_size(), 2)

    @skip_if_lt_x_gpu(4)
    def test_of_four(self):
        raise AssertionError

    def test_wrong_on_one(self):
        self.assertEqual(self.rank, 0)


class TestThreads(FSDPTestMultiThread):
    @property
    def world_size(self):
        return 3

    def test_shards(self):
        model = fully_shard(torch.nn.Linear(4, 6, device="cuda"))
        self.assertEqual(model.weight.to_local().shape, (2, 4))
        self.assertEqual(model.weight.device.type, "cuda")


class TestAlone(unittest.TestCase):
    def test_it(self):
        self.assertFalse(dist.is_initialized())

    @unittest.skip("for now")
    def test_skipped(self):
        pass

    def test_wrong(self):
        self.assertEqual(torch.ones(1, device="cuda:0").item(), 2)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "test/distributed/_composable/fsdp"
    folder.mkdir(parents=True)
    (folder / "test_small.py").write_text(FILE)
    deep = tmp_path / "test/distributed/checkpoint/e2e"
    deep.mkdir(parents=True)
    (deep / "test_broken.py").write_text("import torch.no_such_module\n")
    (deep / "helpers.py").write_text("")
    return tmp_path


def test_files_are_found_by_name(checkout: Path) -> None:
    def found(*names: str) -> list[str]:
        return [file.stem for file in files_of(checkout, names)]

    assert found() == ["test_small", "test_broken"]
    assert found("test_s*") == ["test_small"]
    assert found("test_other") == []


def test_a_file_is_read_for_this_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICES", "3")
    path = tmp_path / "test_read_for_this_device.py"
    path.write_text(
        "import torch\n"
        "counts = [\n"
        "    torch.cuda.device_count(),\n"
        "    torch.accelerator.device_count(),\n"
        "    torch.get_device_module('cuda').device_count(),\n"
        "]\n"
        "device = torch.device('cuda', torch.cuda.current_device())\n"
        "stream = torch.get_device_module(device).Stream(device)\n"
    )

    module = load_file("test_read_for_this_device", path)
    monkeypatch.delitem(sys.modules, "test_read_for_this_device")

    assert module.counts == [3, 3, 3]
    assert str(module.device) == "pjrt:0"
    assert type(module.stream).__module__.startswith("torch_pjrt")


@pytest.mark.slow
def test_each_kind_of_test_runs_and_one_that_fails_says_why(checkout: Path) -> None:
    run, results = run_suite(checkout, "--checkout", str(checkout), "--once")

    assert run.returncode == 1, run.stdout + run.stderr
    outcomes = {test.removeprefix("test_small::"): outcome for test, outcome in results.items()}
    assert outcomes == {
        "TestTeam.test_sum": "passed",
        "TestTeam.test_of_four": "skipped",
        "TestTeam.test_wrong_on_one": "failed",
        "TestThreads.test_shards": "passed",
        "TestAlone.test_it": "passed",
        "TestAlone.test_skipped": "skipped",
        "TestAlone.test_wrong": "failed",
    }
    assert "TestTeam.test_wrong_on_one: rank 1: AssertionError" in run.stdout
    assert "TestAlone.test_wrong: rank 0: AssertionError: 1.0 != 2" in run.stdout
    assert "NOT LOADED" in run.stdout and "test_broken.py: ModuleNotFoundError" in run.stdout
