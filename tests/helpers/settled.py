"""A test starts from the same state wherever it runs: random numbers, and garbage of the tests before it."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Iterator
from typing import Any

import jax
import numpy
import pytest
import torch

import torch_pjrt


@pytest.fixture(autouse=True, scope="module")
def few_objects() -> None:
    """No collection looks at what is there, a third of a second each, until a search for objects does."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """What tests before have recorded, and garbage still holds, has run: this one's programs are its own."""
    torch_pjrt.sync()


# Not all 64: a handler of another one would be seen by few tests.
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
)


def _states() -> dict[str, Any]:
    """What of JAX, PyTorch and Python is set for all that the thread, or the process, does later."""
    return {
        **{f"jax.config.{name}": value for name, value in jax.config.values.items()},
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_default_device()": str(torch.get_default_device()),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled(),
        "torch.is_anomaly_enabled()": torch.is_anomaly_enabled(),
        "torch.are_deterministic_algorithms_enabled()": (
            torch.are_deterministic_algorithms_enabled()
        ),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.is_autocast_enabled()": torch.is_autocast_enabled("pjrt"),
        "torch.is_autocast_enabled('cpu')": torch.is_autocast_enabled("cpu"),
        "torch.get_num_threads()": torch.get_num_threads(),
        "dispatch keys taken in": str(torch._C._dispatch_tls_local_include_set()),
        "dispatch keys left out": str(torch._C._dispatch_tls_local_exclude_set()),
        **{f"the handler of {number.name}": signal.getsignal(number) for number in _SIGNALS},
    }


@pytest.fixture(autouse=True)
def states_stay(same_random_numbers: None) -> Iterator[None]:
    """What a test sets, and what an interrupt of it cuts short, is set back: those behind it find it so."""
    before = _states()
    yield
    after = _states()
    changed = [
        f"{name}: {before[name]} before, {after[name]} after"
        for name in before
        if after[name] != before[name]
    ]
    assert not changed, "The test leaves behind it:\n" + "\n".join(changed)
