"""A test starts from the same state wherever it runs: random numbers, and garbage of the tests before it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import numpy
import pytest
import torch

import torch_pjrt


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """A test alone draws what it draws behind others: from seed 0, in PyTorch, NumPy and Python."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    random.seed(0)


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Two looks at memory see the same arrays: garbage goes before the test, and the collector waits."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def nothing_pending() -> None:
    """What tests before have recorded and kept has run, and is no part of the first program of this one."""
    torch_pjrt.sync()
