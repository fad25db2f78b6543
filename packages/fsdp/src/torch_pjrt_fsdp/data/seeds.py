"""Random numbers of a sample that depend on seed, epoch and sample alone, whoever loads it, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from torch_pjrt_fsdp.data.errors import DataError
from torch_pjrt_fsdp.data.permutation import key_of


def seed_of(seed: int, epoch: int, number: int) -> int:
    """A seed of 63 bits for a sample of an epoch."""
    return key_of(seed, epoch, number) >> 1


class SeededIndex(int):
    """An index that carries the seed of its sample."""

    seed: int

    def __new__(cls, index: int, seed: int) -> SeededIndex:
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SeededIndex, (int(self), self.seed)


class SeededSamples(Dataset[Any]):
    """A dataset whose samples draw the same random numbers however they are loaded.

    Python's, NumPy's and PyTorch's global generators of the CPU are seeded before each sample, 10 to 25 us,
    and put back after each batch, about 400 us. So random crops, say, are the same with other
    workers or processes, and after resuming.

        DataLoader(SeededSamples(dataset), batch_sampler=GlobalBatchSampler(..., seed_samples=True))
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """The samples of a batch, as `DataLoader` asks for them."""
        samples = []
        with generators_kept():
            for index in indices:
                if not isinstance(index, SeededIndex):
                    raise DataError(
                        "This index has no seed.",
                        saw=f"{index!r} of type {type(index).__name__}",
                        hint="GlobalBatchSampler(..., seed_samples=True)",
                    )
                seed_generators(index.seed)
                samples.append(self.dataset[int(index)])
        return samples


def seed_generators(seed: int) -> None:
    """Seed the global generators of the CPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """A block after which the global generators of the CPU are as before."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)


@contextmanager
def pytorch_seeded(seed: int) -> Iterator[None]:
    """A block in which PyTorch's generator of the CPU starts from a seed; then it is as before."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
