"""A `DeviceLoader`'s thread runs the loader as the reader would, and never leaves it waiting or alone."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import torch_pjrt
import warm
from hangs import SLACK_S
from torch_pjrt import DeviceLoader


class Seen:
    """Four batches, each of what `look` sees where the loader runs."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self.look = look

    def __iter__(self) -> Iterator[Any]:
        for _ in range(4):
            yield str(self.look())


def product() -> torch.dtype:
    return (torch.ones(2, 2, device="cpu") @ torch.ones(2, 2, device="cpu")).dtype


@pytest.mark.parametrize(
    ("mode", "look"),
    [
        (torch.no_grad, torch.is_grad_enabled),
        (torch.inference_mode, torch.is_inference_mode_enabled),
        (lambda: torch.device("meta"), lambda: torch.ones(1).device),
        (lambda: torch.device("pjrt"), lambda: torch.ones(1).device),
        (lambda: torch.autocast("cpu"), product),
        (lambda: torch.autocast("cpu", torch.float16), product),
        (lambda: torch.autocast("pjrt"), lambda: torch.is_autocast_enabled("pjrt")),
    ],
)
def test_all_batches_are_made_in_the_readers_modes(
    mode: Callable[[], AbstractContextManager[Any]], look: Callable[[], Any]
) -> None:
    outside = look()
    with mode():
        inside = look()
        seen = list(DeviceLoader(Seen(look)))

    assert seen == [str(inside)] * 4
    assert list(DeviceLoader(Seen(look))) == [str(outside)] * 4
    assert inside != outside


def test_what_a_loader_makes_on_the_device_is_read_as_it_is() -> None:
    class OnDevice:
        def __iter__(self) -> Iterator[torch.Tensor]:
            for i in range(5):
                yield torch.full((3,), float(i)) * 2

    with torch.device("pjrt"):
        sums = [batch.sum().item() for batch in DeviceLoader(OnDevice(), prefetch=3)]

    assert sums == [0, 6, 12, 18, 24]


def test_a_thread_that_is_gone_is_an_error_and_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_pjrt.data.loader._send_all", lambda *arguments: None)
    monkeypatch.setattr("torch_pjrt.data.loader._MOST_WAIT_S", 0.05)

    with pytest.raises(RuntimeError, match="has ended without a word"):
        list(DeviceLoader([torch.ones(1)]))


def test_many_loops_left_early_leave_no_threads() -> None:
    def endless() -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(2)

    before = threading.active_count()
    for n in range(20):
        for number, _ in enumerate(DeviceLoader(endless())):
            if number == n % 3:
                break
    loops = [iter(DeviceLoader(endless())) for _ in range(5)]
    assert [len(next(loop)) for loop in loops] == [2] * 5
    del loops
    gc.collect()
    deadline = time.monotonic() + SLACK_S
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)

    assert threading.active_count() <= before


def test_an_error_within_a_batch_is_raised_at_that_batch() -> None:
    class Unmovable:
        def to(self, device: Any) -> Any:
            raise OSError("it stays")

    batches = iter(DeviceLoader([torch.ones(1), torch.ones(2), Unmovable(), torch.ones(3)]))

    assert [len(next(batches)), len(next(batches))] == [1, 2]
    with pytest.raises(OSError, match="it stays"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


SCRIPT = """
import torch, torch_pjrt
def endless():
    while True:
        yield torch.rand(64, 64)
batches = iter(torch_pjrt.DeviceLoader(endless(), prefetch=3))
next(batches), next(batches)
{end}
"""


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise SystemExit(3)", 3)])
def test_a_process_ends_within_a_loop_as_it_would_have(end: str, status: int) -> None:
    done = warm.run(["-c", SCRIPT.format(end=end)], os.environ, timeout=120)

    assert (done.returncode, done.stderr) == (status, "")


def test_batches_of_an_epoch_that_ends_early_are_all() -> None:
    """Loops over one loader that gives fewer batches each time, down to none."""

    class Fewer:
        left = 3

        def __iter__(self) -> Iterator[torch.Tensor]:
            n, self.left = self.left, self.left - 1
            yield from (torch.tensor(i) for i in range(n))

    loader = DeviceLoader(Fewer(), prefetch=5)

    assert [[x.item() for x in loader] for _ in range(4)] == [[0, 1, 2], [0, 1], [0], []]
    torch_pjrt.sync()
