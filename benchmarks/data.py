"""What it costs to be able to resume: time of a batch, and memory of an order of many samples.

    python benchmarks/data.py                  # both tables
    python benchmarks/data.py times            # the first alone
    python benchmarks/data.py memory WAY SIZE  # one cell of the second, in this process

Ways run in turns, so that all see the same weather on a shared machine. Times are those that the main thread
computes, and the fastest round of each is shown: what is slower contains the work of others.
Memory is that of a process of its own: its peak, less the peak of one that has imported the same and
shuffles one batch.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from torch_pjrt_fsdp import (
    Budget,
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    ResumableLoader,
    SeededSamples,
)

ROUNDS, BATCHES, BATCH, SIZE = 15, 200, 64, 1_000_000
SIZES = (10**6, 10**8, 10**9)
ONE = DataShard()


class Rows(Dataset[torch.Tensor]):
    """Samples that cost next to nothing: what is measured is what stands around them."""

    def __init__(self, size: int) -> None:
        self.size, self.row = size, torch.zeros(8)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.row


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.repeat(torch.zeros(8), SIZE)


def plain(**options: Any) -> DataLoader[Any]:
    return DataLoader(Rows(SIZE), BATCH, shuffle=True, **options)


def resumable(batch_size: Any = BATCH, seeds: bool = False, **options: Any) -> ResumableLoader:
    sampler = GlobalBatchSampler(SIZE, batch_size, seed_samples=seeds, shard=ONE)
    rows: Any = SeededSamples(Rows(SIZE)) if seeds else Rows(SIZE)
    return ResumableLoader(DataLoader(rows, batch_sampler=sampler, **options))


def plain_stream() -> DataLoader[Any]:
    return DataLoader(Stream(), BATCH)


def resumable_stream() -> ResumableLoader:
    return ResumableLoader(DataLoader(GlobalStream(Stream(), BATCH, shard=ONE), batch_size=None))


WAYS: dict[str, Callable[[], Any]] = {
    "DataLoader, shuffle=True": plain,
    "ResumableLoader": resumable,
    "ResumableLoader, a state for each batch": resumable,
    "ResumableLoader, a Budget": lambda: resumable(Budget(lambda _: 1, BATCH)),
    "ResumableLoader, SeededSamples": lambda: resumable(seeds=True),
    "DataLoader, 1 worker": lambda: plain(num_workers=1),
    "ResumableLoader, 1 worker": lambda: resumable(num_workers=1),
    "DataLoader of a stream": plain_stream,
    "ResumableLoader of a GlobalStream": resumable_stream,
}


def batch_us(name: str) -> float:
    """Microseconds of the main thread for a batch, behind the first ten: they hold what is done once."""
    loader = WAYS[name]()
    batches = iter(loader)
    for _ in range(10):
        next(batches)
    start = time.thread_time()
    for _ in range(BATCHES):
        next(batches)
        if "state" in name:
            loader.state_dict()
    return (time.thread_time() - start) / BATCHES * 1e6


def times() -> None:
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name in WAYS:
            found[name].append(batch_us(name))
    print(f"| a batch of {BATCH} | us | beside its DataLoader |\n|---|--:|--:|")
    beside = 1.0
    for name, values in found.items():
        fastest = min(values)
        beside = fastest if name.startswith("DataLoader") else beside
        print(f"| {name} | {fastest:.0f} | {fastest / beside:.2f} |")


def first_of(way: str, size: int) -> None:
    """The first batch of an epoch of so many samples."""
    if way == "GlobalBatchSampler":
        sampler: Any = GlobalBatchSampler(size, BATCH, shard=ONE)
    elif way == "shuffle=True":
        sampler = DataLoader(Rows(size), BATCH, shuffle=True).batch_sampler
    else:
        sampler = DistributedSampler(Rows(size), num_replicas=8, rank=0)
    next(iter(sampler))


def memory(way: str, size: int) -> None:
    start = time.perf_counter()
    first_of(way, size)
    seconds = time.perf_counter() - start
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds)


def cell(way: str, size: int) -> tuple[float, float]:
    """MB at the peak, and seconds."""
    done = subprocess.run(
        [sys.executable, __file__, "memory", way, str(size)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, seconds = map(float, done.stdout.split())
    return peak, seconds


def memories() -> None:
    print("\n| order of | " + " | ".join(f"{size:,} samples" for size in SIZES) + " |")
    print("|---|" + "--:|" * len(SIZES))
    for way in ("GlobalBatchSampler", "shuffle=True", "DistributedSampler"):
        cells, (before, _) = [], cell(way, BATCH)
        for size in SIZES:
            if way != "GlobalBatchSampler" and size > 10**8:
                cells.append("not tried")  # 8 bytes and more for each
                continue
            peak, seconds = cell(way, size)
            cells.append(f"{max(peak - before, 0):.1f} MB, {seconds:.3f} s")
        print(f"| {way} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(sys.argv[2], int(sys.argv[3]))
    else:
        times()
        if sys.argv[1:2] != ["times"]:
            memories()
