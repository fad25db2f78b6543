"""On a Ray cluster of two hosts, here on one machine: launches, errors, restarts, and Ray Train's own loop.

`hatch run ray:run` has Ray; elsewhere these tests are skipped.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest
import torch

from hangs import HANGS_S
from torch_pjrt_spmd import LaunchError

ray = pytest.importorskip("ray", reason="Ray is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two hosts with one CPU each."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    variables = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "PYTHONWARNINGS": "ignore",
        "PJRT_DEVICE": "CPU",
        "RAY_TRAIN_V2_ENABLED": "1",
        "TORCH_PJRT_PEER_TIMEOUT": "10",  # rank 0 waits so long for a rank 1 that has failed
    }
    before = dict(os.environ)
    os.environ.update(variables)
    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=small)
    made.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray.init(address=made.address, runtime_env={"env_vars": variables})
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()
    os.environ.update(before)


def test_each_host_has_a_worker_and_results_come_back(cluster: Any) -> None:
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray

    results = launch_on_ray(
        jobs.summed, 2, (torch.tensor([1.0, 2.0]),), environment={"HOME": "/elsewhere"}
    )

    assert [r["rank"] for r in results] == [0, 1]
    assert {(r["LOCAL_RANK"], r["LOCAL_WORLD_SIZE"], r["HOME"]) for r in results} == {
        ("0", "1", "/elsewhere")
    }
    assert all(torch.equal(r["total"], torch.tensor([3.0, 6.0])) for r in results)


def test_first_error_is_passed_on_and_all_others_end(
    cluster: Any, tmp_path: Path, all_are_gone: Callable[[list[int]], None]
) -> None:
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray

    with pytest.raises(LaunchError, match="Rank 1 of 2 failed") as raised:
        launch_on_ray(jobs.failing_alone, 2, (str(tmp_path),))
    seconds = time.time() - float(Path(f"{tmp_path}.raised").read_text())

    assert isinstance(raised.value.__cause__, KeyError)
    assert 'raise KeyError("no such layer")' in raised.value.traceback
    assert seconds < HANGS_S / 2
    all_are_gone([int(file.read_text()) for file in tmp_path.iterdir()])


def test_process_that_is_killed_is_named(cluster: Any) -> None:
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray

    with pytest.raises(LaunchError, match="Rank 1 of 2 failed: ActorDiedError"):
        launch_on_ray(jobs.killed, 2)


def test_run_goes_on_from_its_last_checkpoint(cluster: Any, tmp_path: Path) -> None:
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray

    notes = tmp_path / "notes"
    notes.mkdir()
    results = launch_on_ray(
        jobs.fails_at_step, 2, (str(tmp_path / "run"), 6, str(notes)), max_restarts=1
    )

    # Steps 0 and 1 are in the checkpoint: 3 + 5; the others add 7, 9, 11, 13.
    assert results == [(2, [15.0, 24.0, 35.0, 48.0])] * 2
    assert sorted(file.name for file in notes.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == ["step-3", "step-5"]


def test_cluster_without_places_is_an_error(cluster: Any) -> None:
    from torch_pjrt_spmd.launching.on_ray import launch_on_ray

    with pytest.raises(LaunchError, match=r"(?s)2 hosts.*3 times .*host of its own"):
        launch_on_ray(jobs.exits, 3, (0,), place_timeout=2)


def test_ray_train_runs_its_loop_on_the_device_and_goes_on_after_a_fault(
    cluster: Any, tmp_path: Path
) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports]
    from ray.train.torch import TorchTrainer  # pyright: ignore[reportMissingImports]

    from torch_pjrt_spmd.launching.ray_train import PjrtConfig

    trainer = TorchTrainer(
        jobs.train_by_ray,
        train_loop_config={},
        torch_config=PjrtConfig(),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        run_config=RunConfig(
            name="run", storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1)
        ),
    )
    result = trainer.fit()

    assert result.error is None
    assert result.metrics is not None
    assert (result.metrics["step"], result.metrics["begin"]) == (3, 2)
    assert result.metrics["device"] == "pjrt"
    assert result.metrics["loss"] == pytest.approx(2 * alone(), rel=1e-5)


def alone() -> float:
    """The loss of the same training on the CPU, by one process that has both parts of the batch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for step in range(4):
        parts = []
        for rank in range(2):
            torch.manual_seed(10 * step + rank)
            parts.append(torch.randn(8, 4))
        inputs = torch.cat(parts)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()
