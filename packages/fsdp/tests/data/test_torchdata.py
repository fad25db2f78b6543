"""torchdata's `StatefulDataLoader` resumes exactly with the sampler and the stream of this package."""

from __future__ import annotations

import random
from typing import Any

import pytest
from interruptions import Numbers, StatefulRecords, plain
from torch.utils.data import DataLoader

from torch_pjrt import DeviceLoader
from torch_pjrt_fsdp import (
    DataError,
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    Permutation,
    ResumableLoader,
)

torchdata = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="needs torchdata: pip install 'torch-pjrt-fsdp[data]'"
)
# It says so of a call of its own.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


def sampler_of(rank: int = 0, processes: int = 1, seed: int = 3) -> GlobalBatchSampler:
    return GlobalBatchSampler(100, 12, seed=seed, shard=DataShard(rank, processes), last="short")


def stateful(sampler: GlobalBatchSampler, n_workers: int, **options: Any) -> Any:
    return torchdata.StatefulDataLoader(
        Numbers(100), batch_sampler=sampler, num_workers=n_workers, **options
    )


def lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_it_goes_on_within_an_epoch_and_then_with_the_next(n_workers: int) -> None:
    whole = [Permutation(100, 3, epoch)[:] for epoch in range(3)]
    for stop in (0, 1, 5, 9):
        loader = stateful(sampler_of(), n_workers)
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(stop)]
        state = plain(loader.state_dict())

        other = stateful(sampler_of(), n_workers)
        other.load_state_dict(state)
        rest = lists(other)

        assert sum(seen + rest, []) == whole[0]  # noqa: RUF017
        assert sum(lists(other), []) == whole[1]  # noqa: RUF017
        assert sum(lists(other), []) == whole[2]  # noqa: RUF017


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 1)])
def test_its_state_is_good_for_other_workers_processes_and_loaders(before: int, after: int) -> None:
    loader = stateful(sampler_of(), before)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(4)]
    state = loader.state_dict()
    rest = []
    for rank in range(2):
        sampler = sampler_of(rank, 2)
        sampler.load_state_dict(state)
        rest.append(lists(stateful(sampler, after)))
    resumable = ResumableLoader(DataLoader(Numbers(100), batch_sampler=sampler_of()))
    resumable.load_state_dict(state)

    both = [x + y for x, y in zip(*rest, strict=True)]
    assert sum(seen + both, []) == Permutation(100, 3)[:]  # noqa: RUF017
    assert lists(resumable) == both


def test_a_state_of_an_earlier_batch_is_refused_where_it_would_repeat() -> None:
    loader = stateful(sampler_of(), 1, snapshot_every_n_steps=3)
    batches = iter(loader)
    for _ in range(4):
        next(batches)

    with pytest.raises(DataError, match="earlier batch"):
        sampler_of().load_state_dict(loader.state_dict())


def test_a_device_loader_around_it_counts_what_was_received() -> None:
    on_device = DeviceLoader(stateful(sampler_of(), 1), prefetch=3)
    seen = []
    for batch in on_device:
        seen.append(batch.tolist())
        if len(seen) == 3:
            break

    other = DeviceLoader(stateful(sampler_of(), 1))
    other.load_state_dict(on_device.state_dict())

    assert sum(seen + lists(other), []) == Permutation(100, 3)[:]  # noqa: RUF017


@pytest.mark.parametrize("n_workers", [0, 1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_stream_goes_on_with_as_many_workers(n_workers: int) -> None:
    def loader_of() -> Any:
        stream = GlobalStream(StatefulRecords(0, 60), 6, shuffle=4, shard=DataShard())
        return torchdata.StatefulDataLoader(stream, batch_size=None, num_workers=n_workers)

    whole = lists(loader_of())
    for stop in random.Random(n_workers).sample(range(11), 3):
        loader = loader_of()
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(stop)]
        other = loader_of()
        other.load_state_dict(plain(loader.state_dict()))

        assert seen + lists(other) == whole
