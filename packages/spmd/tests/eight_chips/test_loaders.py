"""Loaders for a mesh: options of a `DataLoader` are kept where it is made anew, and faults come as errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from torch_pjrt_spmd import DeviceLoader, Mesh, ShardingError, own_part, sharding_of
from torch_pjrt_spmd.loader import _own_rows
from torch_pjrt_spmd.own_batches import OwnPart, own_rows_of


@pytest.fixture
def mesh() -> Mesh:
    return Mesh((2, 4), ("data", "model"))


class Part:
    """A loader that says that it gives rows of one process."""

    gives = "part"

    def __init__(self, shard: Any = None) -> None:
        self.shard = shard

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield torch.arange(8.0).view(4, 2)


class Shard:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


def test_a_loader_that_is_made_anew_keeps_its_options(mesh: Mesh) -> None:
    rows = TensorDataset(torch.arange(32))
    options: dict[str, Any] = {
        "num_workers": 1,
        "in_order": False,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "timeout": 7.0,
        "generator": torch.Generator(),
        "collate_fn": len,
        "worker_init_fn": print,
    }

    anew = own_rows_of(DataLoader(rows, batch_size=4, **options), mesh, "data")

    assert {name: getattr(anew, name) for name in options} == options


def test_what_a_process_has_of_a_dim(mesh: Mesh) -> None:
    assert own_part(mesh, "data") == OwnPart(0, 2, 2)
    assert own_part(mesh, ("data", "model")) == OwnPart(0, 8, 8)
    assert own_part(mesh, None) == OwnPart(0, 1, 1)


def test_who_says_that_it_gives_parts_is_believed_and_checked(mesh: Mesh) -> None:
    loader = Part(Shard(0, 1))

    assert _own_rows(loader, mesh, ("data",)) == (loader, "part")
    sampled = DataLoader(TensorDataset(torch.arange(8)), batch_size=4)
    sampled.sampler.gives = "part"  # type: ignore[attr-defined]
    assert _own_rows(sampled, mesh, ("data",)) == (sampled, "part")
    with pytest.raises(ShardingError, match="other rows than those that lie on the chips"):
        _own_rows(Part(Shard(1, 2)), mesh, ("data",))


def test_an_error_of_the_source_comes_where_its_batch_would_have(mesh: Mesh) -> None:
    def failing() -> Iterator[torch.Tensor]:
        yield torch.ones(4, 4)
        yield torch.ones(4, 4)
        raise OSError("the disk is gone")

    batches = iter(DeviceLoader(failing(), mesh, ("data", "model")))

    assert [sharding_of(next(batches)) is not None for _ in range(2)] == [True, True]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert not [t for t in threading.enumerate() if t.name == "torch_pjrt.DeviceLoader"]


def test_a_batch_that_cannot_lie_on_the_mesh_ends_the_loop_alone(mesh: Mesh) -> None:
    batches = [torch.ones(4, 4), torch.ones(4, 4), torch.ones(3, 4), torch.ones(4, 4)]
    loader = DeviceLoader(batches, mesh, ("data",))
    seen = []
    with pytest.raises(ShardingError, match="3"):
        for batch in loader:
            seen.append(batch)

    assert len(seen) == 2
    assert len(list(DeviceLoader(batches[:2], mesh, ("data",)))) == 2
