"""Datasets of Hugging Face resume exactly: with indices as they are, and streams by their own states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from interruptions import plain
from torch.utils.data import DataLoader

from torch_pjrt_fsdp import (
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    Permutation,
    ResumableLoader,
)

datasets = pytest.importorskip(
    "datasets", reason="needs Hugging Face's datasets: pip install 'torch-pjrt-fsdp[datasets]'"
)
ONE = DataShard()


def records(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        for i in range(9):
            yield {"x": shard * 100 + i}


def made(name: str) -> Any:
    """A stream of a name."""
    rows = datasets.Dataset.from_dict({"x": list(range(50))}).to_iterable_dataset(num_shards=5)
    read = datasets.IterableDataset.from_generator(records, gen_kwargs={"shards": [0, 1, 2, 3]})
    return {
        "rows": lambda: rows,
        "read": lambda: read,
        "mapped": lambda: rows.map(lambda r: {"x": r["x"] * 2}),
        "mapped in batches": lambda: rows.map(
            lambda r: {"x": [x * 2 for x in r["x"]]}, batched=True, batch_size=7
        ),
        "filtered": lambda: rows.filter(lambda r: r["x"] % 3 != 0),
        "shards shuffled": lambda: rows.shuffle(seed=2, buffer_size=1),
        "shuffled": lambda: read.shuffle(seed=1, buffer_size=10).map(lambda r: r),
        "interleaved": lambda: datasets.interleave_datasets([rows, read]),
        "interleaved by chance": lambda: datasets.interleave_datasets(
            [rows, read], probabilities=[0.3, 0.7], seed=3
        ),
        "joined": lambda: datasets.concatenate_datasets([rows, read]),
        "cut": lambda: rows.skip(5).take(30),
        "tensors": lambda: rows.with_format("torch"),
        "lanes": lambda: [rows.shard(5, i) for i in range(5)],
    }[name]()


NAMES = [
    "rows", "read", "mapped", "mapped in batches", "filtered", "shards shuffled", "shuffled", "interleaved",
    "interleaved by chance", "joined", "cut", "tensors", "lanes",
]  # fmt: skip


def loader_of(source: Any, n_workers: int = 0, **options: Any) -> ResumableLoader:
    stream = GlobalStream(source, 5, **options)
    return ResumableLoader(DataLoader(stream, batch_size=None, num_workers=n_workers))


def lists(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize("shuffle", [0, 6])
@pytest.mark.parametrize("name", NAMES)
def test_a_stream_goes_on_from_each_batch(name: str, shuffle: int) -> None:
    # Of each a dataset of its own, as in another process: interleaved ones prefetch in threads, and two loops
    # over one of them get in each other's way.
    loader = loader_of(made(name), shuffle=shuffle, shard=ONE)
    whole, later = lists(loader), lists(loader)

    assert len(whole) > 4
    other = loader
    for stop in range(len(whole) + 1):
        loader = loader_of(made(name), shuffle=shuffle, shard=ONE)
        batches = iter(loader)
        seen = [next(batches)["x"].tolist() for _ in range(stop)]
        other = loader_of(made(name), shuffle=shuffle, shard=ONE)
        other.load_state_dict(plain(loader.state_dict()))

        assert seen + lists(other) == whole
    assert lists(other) == later


@pytest.mark.parametrize("name", ["rows", "lanes"])
def test_a_stream_is_shared_by_workers_and_processes(name: str) -> None:
    source = made(name)
    whole = lists(loader_of(source, shard=ONE))
    loader = loader_of(source, 2, shard=ONE)
    batches = iter(loader)
    seen = [next(batches)["x"].tolist() for _ in range(3)]
    state = loader.state_dict()
    rest = []
    for rank in range(5):
        other = loader_of(source, 1 if rank == 0 else 0, shard=DataShard(rank, 5), **limit(name))
        other.load_state_dict(state)
        rest.append(lists(other))

    together = [[x for part in parts for x in part] for parts in zip(*rest, strict=True)]
    assert seen + together == whole


def limit(name: str) -> dict[str, int]:
    return {"batches_per_epoch": 10} if name == "lanes" else {}


def test_a_dataset_with_indices_is_taken_as_it_is() -> None:
    data = datasets.Dataset.from_dict({"x": list(range(40))}).with_format("torch")

    def loader() -> ResumableLoader:
        sampler = GlobalBatchSampler(data, 8, seed=1, shard=ONE)
        return ResumableLoader(DataLoader(data, batch_sampler=sampler))

    one, other = loader(), loader()
    batches = iter(one)
    seen = [next(batches)["x"].tolist() for _ in range(2)]
    other.load_state_dict(one.state_dict())

    assert [x for batch in seen + lists(other) for x in batch] == Permutation(40, 1)[:]
