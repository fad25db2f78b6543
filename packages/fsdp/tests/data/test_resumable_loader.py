"""Loops over a `ResumableLoader` are epochs, its state counts what was received, and errors say where."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from interruptions import Numbers, Records
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torch_pjrt import DeviceLoader
from torch_pjrt_fsdp import (
    Budget,
    DataError,
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    Permutation,
    ResumableLoader,
    SeededSamples,
    WorkerDied,
)

ONE = DataShard()


def loader_of(
    size: int = 50, batch_size: Any = 4, n_workers: int = 0, **options: Any
) -> ResumableLoader:
    sampler = GlobalBatchSampler(size, batch_size, shard=ONE, **options)
    return ResumableLoader(DataLoader(Numbers(size), batch_sampler=sampler, num_workers=n_workers))


def lists(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def test_an_epoch_is_the_permutation_of_its_seed_and_number() -> None:
    loader = loader_of(40, 8, seed=3)

    first, second = lists(loader), lists(loader)

    assert flat(first) == Permutation(40, 3, 0)[:]
    assert flat(second) == Permutation(40, 3, 1)[:]
    loader.set_epoch(0)
    assert lists(loader) == first


def test_a_loop_that_was_left_is_followed_by_the_next_epoch() -> None:
    loader = loader_of(seed=1)
    for n_workers in (0, 1):
        loader = loader_of(seed=1, n_workers=n_workers)
        assert loader.epoch == 0
        next(iter(loader))
        assert loader.state_dict()["position"] == 4

        assert flat(lists(loader)) == Permutation(50, 1, 1)[:48]


def test_state_before_within_and_behind_an_epoch() -> None:
    loader = loader_of(10, 4)

    states = [loader.state_dict()] + [loader.state_dict() for _ in loader] + [loader.state_dict()]

    assert [(s["epoch"], s["position"]) for s in states] == [(0, 0), (0, 4), (0, 8), (1, 0)]


def test_the_state_at_the_last_batch_goes_on_with_an_empty_rest() -> None:
    one, other = loader_of(8, 4), loader_of(8, 4)
    states = [one.state_dict() for _ in one]

    other.load_state_dict(states[-1])

    assert other.epoch == 0 and lists(other) == []
    assert other.epoch == 1 and len(lists(other)) == 2


def test_the_state_loaded_is_kept_by_set_epoch_of_that_epoch_alone() -> None:
    one, other = loader_of(20, 4), loader_of(20, 4)
    batches = iter(one)
    for _ in range(2):
        next(batches)
    state = one.state_dict()

    other.load_state_dict(state)
    other.set_epoch(0)
    rest = lists(other)
    other.load_state_dict(state)
    other.set_epoch(2)

    assert flat(rest) == Permutation(20)[8:]
    assert flat(lists(other)) == Permutation(20, 0, 2)[:]


def test_a_loop_that_runs_has_no_say_once_a_state_was_loaded() -> None:
    loader = loader_of(20, 4)
    state = loader.state_dict()
    batches = iter(loader)
    next(batches)

    loader.load_state_dict({**state, "position": 16})
    next(batches)

    assert loader.state_dict()["position"] == 16
    assert lists(loader) == [Permutation(20)[16:]]


def test_of_nested_loops_the_state_is_that_of_the_one_begun_last() -> None:
    loader = loader_of(20, 4)
    outer = iter(loader)
    next(outer)
    inner = iter(loader)
    for loop in (inner, inner, outer):
        next(loop)

    assert (loader.epoch, loader.state_dict()["position"]) == (1, 8)


def test_persistent_workers_go_on_with_what_was_loaded() -> None:
    sampler = GlobalBatchSampler(24, 4, shard=ONE)
    loader = ResumableLoader(
        DataLoader(Numbers(24), batch_sampler=sampler, num_workers=1, persistent_workers=True)
    )
    whole = lists(loader)

    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 12})

    assert lists(loader) == whole[3:]
    assert flat(lists(loader)) == Permutation(24, 0, 1)[:]


def test_prefetched_batches_do_not_count_for_a_device_loader() -> None:
    loader = loader_of(48, 4, seed=5)
    on_device = DeviceLoader(loader, prefetch=3)
    seen = []
    for batch in on_device:
        seen.append(batch.tolist())
        if len(seen) == 5:
            break
    state = on_device.state_dict()

    other = DeviceLoader(loader_of(48, 4, seed=5), prefetch=2)
    other.load_state_dict(state)
    other.set_epoch(state["epoch"])

    assert state["position"] == 20
    assert flat(seen + lists(other)) == Permutation(48, 5)[:]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"size": 49}, "size"), ({"seed": 1}, "seed"), ({"shuffle": False}, "shuffle")],
)
def test_a_state_of_other_data_is_refused(change: dict[str, Any], word: str) -> None:
    state = loader_of().state_dict()

    with pytest.raises(DataError, match=f"another `{word}`"):
        loader_of(**change).load_state_dict(state)


def test_what_is_no_state_is_refused() -> None:
    stream = GlobalStream(range(10), 2, shard=ONE)
    for wrong in (
        {"model": 1},
        stream.state_dict(),
        [1],
        {**loader_of().state_dict(), "version": 99},
    ):
        with pytest.raises(DataError, match=r"no state of this data|another version"):
            loader_of().load_state_dict(wrong)
    with pytest.raises(DataError, match="earlier batch"):
        loader_of().load_state_dict({"_snapshot": {}, "_steps_since_snapshot": 1})


def test_what_cannot_be_is_refused_at_once() -> None:
    numbers = Numbers(10)
    with pytest.raises(ValueError, match="3 must divide it"):
        GlobalBatchSampler(10, 4, shard=DataShard(0, 3))
    with pytest.raises(ValueError, match='"drop", "pad" or "short"'):
        GlobalBatchSampler(10, 4, last="keep")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        DataShard(2, 2)
    with pytest.raises(TypeError, match="GlobalBatchSampler"):
        ResumableLoader(DataLoader(numbers, batch_size=4))
    with pytest.raises(TypeError, match=r"must be a `torch.utils.data.DataLoader`"):
        ResumableLoader([1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in no order"):
        sampler = GlobalBatchSampler(10, 4, shard=ONE)
        ResumableLoader(DataLoader(numbers, batch_sampler=sampler, num_workers=1, in_order=False))
    with pytest.raises(ValueError, match="makes batches itself"):
        ResumableLoader(DataLoader(GlobalStream(numbers, 4, shard=ONE), batch_size=4))  # type: ignore[arg-type]


def test_lengths_are_those_of_what_comes() -> None:
    for size in range(40):
        for last in ("drop", "pad", "short"):
            for processes in (1, 2, 4):
                shards = [DataShard(rank, processes) for rank in range(processes)]
                samplers = [GlobalBatchSampler(size, 8, last=last, shard=s) for s in shards]  # type: ignore[arg-type]

                assert {len(list(s)) for s in samplers} == {len(samplers[0])}
    with pytest.raises(TypeError, match="varying size"):
        len(loader_of(batch_size=Budget([1] * 50, 10)))


def test_batches_of_a_budget_cost_at_most_that() -> None:
    lengths = [(i * 7) % 13 + 1 for i in range(200)]
    padded = lists(loader_of(200, Budget(lengths, 64, padded=True, multiple_of=2), last="short"))
    summed = lists(loader_of(200, Budget(lengths.__getitem__, 64), last="short"))

    assert sorted(flat(padded)) == sorted(flat(summed)) == list(range(200))
    assert all(max(lengths[i] for i in batch) * len(batch) <= 64 for batch in padded)
    assert all(len(batch) % 2 == 0 for batch in padded)
    assert all(sum(lengths[i] for i in batch) <= 64 for batch in summed)
    assert all(
        sum(lengths[i] for i in batch) + lengths[later[0]] > 64 for batch, later in pairwise(summed)
    )


def test_a_sample_over_the_budget_is_named() -> None:
    with pytest.raises(DataError, match=r"samples \[3\] that cost \[9.0\]"):
        lists(loader_of(5, Budget([1, 1, 1, 9, 1], 4), shuffle=False))


class Noisy(Dataset[torch.Tensor]):
    """Samples of random numbers, of all three generators."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.random(), torch.rand(()).item()])


def test_random_numbers_of_a_sample_are_the_same_wherever_it_is_loaded() -> None:
    def noisy(n_workers: int, batch_size: int) -> dict[int, list[float]]:
        sampler = GlobalBatchSampler(30, batch_size, seed_samples=True, shard=ONE)
        loader = ResumableLoader(
            DataLoader(SeededSamples(Noisy()), batch_sampler=sampler, num_workers=n_workers)
        )
        return {int(row[0]): row.tolist() for batch in loader for row in batch}

    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = noisy(0, 5)

    # A run that resumes begins one loop more than others: it draws no more for that.
    assert torch.equal(torch.get_rng_state(), before)
    assert noisy(1, 10) == one
    assert len({row[1] for row in one.values()}) == len({row[3] for row in one.values()}) == 30
    with pytest.raises(DataError, match="no seed"):
        SeededSamples(Noisy())[3]


class Broken(Dataset[int]):
    """Sample 13 is not there, and sample 17 kills who asks for it."""

    def __init__(self, kills: bool) -> None:
        self.kills = kills

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if index == 13 and not self.kills:
            raise FileNotFoundError("sample 13")
        if index == 17 and self.kills:
            time.sleep(0.5)  # the reader waits for it: elsewhere PyTorch would raise its own error
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_error_of_the_dataset_says_at_which_batch(n_workers: int) -> None:
    sampler = GlobalBatchSampler(24, 4, shuffle=False, shard=ONE)
    loader = ResumableLoader(
        DataLoader(Broken(kills=False), batch_sampler=sampler, num_workers=n_workers)
    )
    seen = []
    with pytest.raises(FileNotFoundError, match="sample 13") as caught:
        for batch in loader:
            seen.append(batch.tolist())

    assert len(seen) == 3 and loader.state_dict()["position"] == 12
    assert (
        "epoch 0, the batch up to position 16, samples [12, 13, 14, 15]"
        in caught.value.__notes__[0]
    )


def test_a_killed_worker_is_an_error_and_the_state_is_good() -> None:
    sampler = GlobalBatchSampler(24, 4, shuffle=False, shard=ONE)
    data = DataLoader(Broken(kills=True), batch_sampler=sampler, num_workers=1)
    loader = ResumableLoader(data)
    seen: list[int] = []
    with pytest.raises(WorkerDied, match="A worker of the DataLoader has ended") as caught:
        for batch in loader:
            seen += batch.tolist()
    state = loader.state_dict()

    assert "DataLoader worker (pid" in str(caught.value)
    assert seen == list(range(state["position"])) and state["position"] <= 16
    other = loader_of(24, 4, shuffle=False)
    other.load_state_dict(state)
    assert seen + flat(lists(other)) == list(range(24))


class Failing(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)
        raise OSError("the connection is gone")


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_error_of_a_source_comes_where_its_batch_would_have(n_workers: int) -> None:
    stream = GlobalStream(Failing(), 4, shard=ONE)
    loader = ResumableLoader(DataLoader(stream, batch_size=None, num_workers=n_workers))
    batches = iter(loader)

    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="the connection is gone"):
        next(batches)
    assert loader.state_dict()["position"] == 4


def test_streams_say_what_cannot_be() -> None:
    sources = [Records(0, 10), Records(10, 10)]
    with pytest.raises(ValueError, match="2 lanes must divide"):
        GlobalStream(sources, 3, shard=ONE)
    with pytest.raises(ValueError, match="need `batches_per_epoch`"):
        GlobalStream(sources, 4, shard=DataShard(0, 2))
    with pytest.raises(ValueError, match="for one lane"):
        GlobalStream(sources, 4, last="short", shard=ONE)
    with pytest.raises(ValueError, match="one epoch without end"):
        GlobalStream(sources, 4, repeat=True, batches_per_epoch=3, shard=ONE)
    with pytest.raises(DataError, match="is an iterator, which can be read once"):
        list(GlobalStream(iter(range(9)), 3, shard=ONE))
    with pytest.raises(DataError, match="ended before the epoch"):
        list(GlobalStream(sources, 4, batches_per_epoch=6, shard=ONE))
    with pytest.raises(DataError, match="is empty"):
        list(GlobalStream(Records(0, 0), 4, repeat=True, shard=ONE))
    one, other = (GlobalStream(sources, 4, shard=ONE) for _ in range(2))
    next(iter(one))
    with pytest.raises(DataError, match="not saved at one moment"):
        one.load_state_dict([one.state_dict(), other.state_dict()])
    one.load_state_dict({**one.state_dict(), "position": 50, "lanes": {}})
    with pytest.raises(DataError, match="has become shorter"):
        list(one)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_repeated_stream_goes_on_in_the_round_where_it_was(n_workers: int) -> None:
    def repeated() -> ResumableLoader:
        stream = GlobalStream(Records(0, 10), 4, repeat=True, shuffle=3, shard=ONE)
        return ResumableLoader(DataLoader(stream, batch_size=None, num_workers=n_workers))

    one = iter(loader := repeated())
    start = [next(one).tolist() for _ in range(4)]
    state = loader.state_dict()
    rest = [next(one).tolist() for _ in range(6)]
    all_of_it = flat(start + rest)
    other = repeated()
    other.load_state_dict(state)
    again = iter(other)

    assert [sorted(all_of_it[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3
    assert [next(again).tolist() for _ in range(6)] == rest


def test_transforms_see_own_samples_alone_with_seeds_of_their_own() -> None:
    def samples(rank: int, processes: int) -> list[list[float]]:
        seen: list[int] = []

        def transform(x: int) -> list[float]:
            seen.append(x)
            return [x, torch.rand(()).item()]

        stream = GlobalStream(
            range(24), 8, transform=transform, seed_samples=True, shard=DataShard(rank, processes)
        )
        rows = [row for batch in stream for row in zip(*(x.tolist() for x in batch), strict=True)]
        assert seen == [row[0] for row in rows]
        return rows  # type: ignore[return-value]

    whole = samples(0, 1)
    parts = sorted(samples(0, 2) + samples(1, 2))

    assert parts == sorted(whole)
    assert len({row[1] for row in whole}) == 24


def test_a_process_that_was_not_told_which_it_is_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")

    with pytest.raises(DataError, match="does not know which of them it is"):
        GlobalBatchSampler(10, 4)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert GlobalBatchSampler(10, 4).shard == DataShard(0, 1)


def test_samplers_and_streams_go_to_other_processes() -> None:
    sampler = GlobalBatchSampler(20, 4, seed=2, shard=ONE)
    sampler.load_state_dict({**sampler.state_dict(), "position": 8})
    stream = GlobalStream(range(20), 4, shard=ONE)
    stream.load_state_dict({**stream.state_dict(), "position": 8})

    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
    assert lists(pickle.loads(pickle.dumps(stream))) == lists(stream)
