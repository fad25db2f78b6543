"""Runs over data, broken off at a random batch and gone on with by others, and what they should give."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torch_pjrt_fsdp import (
    Budget,
    DataShard,
    GlobalBatchSampler,
    GlobalStream,
    Permutation,
    ResumableLoader,
)

LAST = ("drop", "pad", "short")


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


class Records(IterableDataset[int]):
    """A source with a state of its own, or without; its order depends on the epoch."""

    def __init__(self, first: int, size: int) -> None:
        self.first, self.size, self.epoch = first, size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        for i in range(self.size):
            yield self.first + (i + self.epoch) % self.size


class StatefulRecords(Records):
    def __init__(self, first: int, size: int) -> None:
        super().__init__(first, size)
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        start, self.given = self.given, 0
        for i, record in enumerate(super().__iter__()):
            if i >= start:
                self.given = i + 1
                yield record

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@dataclass(frozen=True)
class Run:
    """How data are loaded, by how many."""

    size: int
    batch_size: int
    processes: int
    n_workers: int
    last: str
    shuffle: int
    seed: int
    lanes: int = 0  # of a stream; 0 for a dataset with indices
    stateful: bool = False
    budget: int = 0  # of a batch of varying size; 0 for `batch_size`

    def loaders(self) -> list[ResumableLoader]:
        """One for each process."""
        return [self.loader(DataShard(rank, self.processes)) for rank in range(self.processes)]

    def loader(self, shard: DataShard) -> ResumableLoader:
        if not self.lanes:
            numbers = Numbers(self.size)
            size: Any = self.batch_size
            last: Any = self.last
            if self.budget:
                size = Budget(cost_of, self.budget, padded=self.seed % 2 == 1, multiple_of=12)
            sampler = GlobalBatchSampler(
                numbers, size, shuffle=self.shuffle > 0, seed=self.seed, last=last, shard=shard
            )  # type: ignore[arg-type]
            return ResumableLoader(
                DataLoader(numbers, batch_sampler=sampler, num_workers=self.n_workers)
            )
        kind = StatefulRecords if self.stateful else Records
        sources = [kind(i * 1000, self.size) for i in range(self.lanes)]
        n_batches = self.size * self.lanes // self.batch_size
        stream = GlobalStream(
            sources,
            self.batch_size,
            last=self.last,  # type: ignore[arg-type]
            shuffle=self.shuffle,
            seed=self.seed,
            shard=shard,
            batches_per_epoch=n_batches if self.lanes > 1 and self.processes > 1 else None,
        )
        return ResumableLoader(DataLoader(stream, batch_size=None, num_workers=self.n_workers))

    def expected(self, epoch: int, position: int = 0) -> list[list[int]]:
        """Batches of all processes from a position of an epoch on, by a way of its own."""
        if self.lanes:
            return self._expected_of_stream(epoch, position)
        order = (
            list(Permutation(self.size, self.seed, epoch))
            if self.shuffle
            else list(range(self.size))
        )
        left, batches = order[position:], []
        while left:
            n = self._fitting(left)
            if n == 0 or len(left) < n:
                unit = 12 if self.budget else self.batch_size
                if self.last == "pad":
                    left = list(
                        itertools.islice(itertools.chain(left, itertools.cycle(order)), unit)
                    )
                if self.last == "pad" or (self.last == "short" and len(left) >= self.processes):
                    batches.append(left)
                break
            batches.append(left[:n])
            left = left[n:]
        return batches

    def _fitting(self, left: list[int]) -> int:
        if not self.budget:
            return self.batch_size
        for n in range(12, len(left) + 13, 12):
            costs = [cost_of(i) for i in left[:n]]
            cost = max(costs) * n if self.seed % 2 else sum(costs)
            if n > len(left) or cost > self.budget:
                return n - 12
        return 0

    def _expected_of_stream(self, epoch: int, position: int) -> list[list[int]]:
        lanes = [list(Records(i * 1000, self.size)) for i in range(self.lanes)]
        lanes = [lane[epoch % self.size :] + lane[: epoch % self.size] for lane in lanes]
        if self.shuffle > 1:
            alike = replace(
                self, processes=1, n_workers=0, batch_size=self.lanes, last="drop", stateful=False
            )
            loader = alike.loader(DataShard())
            loader.set_epoch(epoch)
            rows = [batch.tolist() for batch in loader]
            shuffled = [list(lane) for lane in zip(*rows, strict=True)]
            for lane, mixed in zip(lanes, shuffled, strict=True):
                for start in range(0, self.size, self.shuffle):
                    part = slice(start, start + self.shuffle)
                    assert sorted(lane[part]) == sorted(
                        mixed[part]
                    )  # shuffled by blocks, and no more
            lanes = shuffled
        n = self.batch_size // self.lanes
        batches = [
            [sample for lane in lanes for sample in lane[start : start + n]]
            for start in range(position, self.size, n)
        ]
        least = self.batch_size if self.last == "drop" else self.processes
        if batches and len(batches[-1]) < least:
            batches.pop()
        return batches


def cost_of(index: int) -> int:
    return index * 7 % 5 + 1


def run(loaders: list[ResumableLoader], most: int | None = None) -> list[list[int]]:
    """The batches that all processes give together, until they have given `most`."""
    loops = [iter(loader) for loader in loaders]
    batches: list[list[int]] = []
    while most is None or len(batches) < most:
        parts = [next(loop, None) for loop in loops]
        if all(part is None for part in parts):
            break
        batches.append([x for part in parts if part is not None for x in part.tolist()])
    return batches


def random_run(rng: random.Random, kind: str, n_workers: int) -> Run:
    lanes = 0 if kind in ("indices", "budget") else rng.choice([1, 1, 2, 3, 4])
    last = rng.choice(LAST if not lanes else LAST[::2] if lanes == 1 else LAST[:1])
    size = rng.choice([0, 1, 11, 12, 13, rng.randrange(150), rng.randrange(400)])
    return Run(
        size=max(size, 1) if lanes else size,
        batch_size=rng.choice([12, 24, 36]),
        processes=rng.choice([1, 2, 3, 4]),
        n_workers=n_workers,
        last=last,
        shuffle=rng.choice([0, 7, 16]),
        seed=rng.randrange(2**32),
        lanes=lanes,
        stateful=rng.random() < 0.5,
        budget=rng.choice([60, 75, 120]) if kind == "budget" else 0,
    )


def try_one(rng: random.Random, kind: str, workers: Callable[[], int]) -> None:
    """Break a run off, go on as another one, and maybe a third; then the next epoch."""
    one = random_run(rng, kind, workers())
    epoch = rng.choice([0, 0, 1, 5])
    whole = replace(one, processes=1).expected(epoch)
    seen: list[list[int]] = []
    state: Any = None
    loaders: list[ResumableLoader] = []
    for _ in range(rng.choice([1, 1, 2]) + 1):
        loaders = one.loaders()
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            if state is None or rng.random() < 0.5:
                loader.set_epoch(epoch)
            assert loader.epoch == epoch
        most = rng.randrange(max(len(one.expected(epoch)) - len(seen), 0) + 1)
        got = run(loaders, most)
        assert len(got) == most, (one, len(got), most)
        seen += got
        states = [loader.state_dict() for loader in loaders]
        state = states if one.lanes > 1 and rng.random() < 0.5 else rng.choice(states)
        one = replace(one, processes=rng.choice([1, 2, 3, 4]), n_workers=workers())
    loaders = one.loaders()
    for loader in loaders:
        loader.load_state_dict(state)
    seen += run(loaders)
    assert seen in (whole, one.expected(epoch)), (
        one,
        epoch,
    )  # the last batch may need fewer processes
    assert run(loaders) == one.expected(epoch + 1), (one, epoch + 1)
    assert all(loader.epoch == epoch + 2 for loader in loaders)


def try_another_batch_size(rng: random.Random, kind: str) -> None:
    """Go on with batches of another size: the rest of the epoch, in order, nothing lost and nothing again."""
    one = replace(
        random_run(rng, kind, 0), last="short" if kind == "indices" else "drop", processes=1
    )
    other = replace(one, batch_size=rng.choice([12, 24, 36]))
    loaders = one.loaders()
    seen = run(loaders, rng.randrange(len(one.expected(0)) + 1))
    state = rng.choice(loaders).state_dict()
    others = other.loaders()
    for loader in others:
        loader.load_state_dict(state)
    rest = run(others)
    assert rest == other.expected(0, state["position"]), (one, other)
    if kind == "indices":
        order = [x for batch in one.expected(0) for x in batch]
        assert [x for batch in seen + rest for x in batch] == order


def plain(state: Any) -> Any:
    """A state as it is read from a file that only weights may be in."""
    import io

    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
