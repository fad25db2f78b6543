"""While a captured step is observed, handlers of signals and other threads may record and read.

What they do is right, what the step does is right, and it is no part of the recording.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import torch_pjrt
from hangs import HANGS_S
from intrusions import intruding
from torch_pjrt.errors import CaptureError
from torch_pjrt.every_object import every
from torch_pjrt.extend import Buffer, buffer_of

# At each observed call (the second, the third, the check after 16 replays) so many places.
PLACES = 1 << 30 if "TORCH_PJRT_INTERRUPTS" in os.environ else 4


class Adding:
    """A step that adds one to a weight, so that what it returns tells how often it ran."""

    def __init__(self) -> None:
        self.weight = torch.zeros(4, device="pjrt")
        self.others: dict[str, Any] = {"scale": 2.0, "unused": [1, 2]}

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.add_(x)
        return (self.weight * self.others["scale"]).sum()


class Counting:
    """Such a step, captured, and how often it ran."""

    def __init__(self) -> None:
        self.one = torch.ones(4, device="pjrt")
        self.adding = Adding()
        self.weight = self.adding.weight
        self.step = self.adding.step
        self.n = 0
        self.captured = torch_pjrt.capture(self.step)

    def run(self, times: int = 1) -> None:
        for _ in range(times):
            result = self.captured(self.one)
            self.n += 1
            assert result.item() == 8.0 * self.n


class Intruder:
    """Counts on the device how often it came, and reads it, or something that the step writes to."""

    def __init__(self, counting: Counting, reads: str) -> None:
        self.total = torch.zeros(2, device="pjrt")
        self.counting = counting
        self.reads = reads
        self.n = 0
        self.seen: list[list[float]] = []
        self.threads: list[threading.Thread] = []

    def come(self, *_: Any) -> None:
        if self.reads == "what the step writes":
            self.seen.append(self.counting.weight.tolist())
            return
        self.total.add_(1)
        self.n += 1
        if self.reads == "its own":
            self.seen.append(self.total.tolist())

    def come_on_a_thread(self) -> None:
        self.threads.append(threading.Thread(target=self.come))
        self.threads[-1].start()

    def check(self) -> None:
        for thread in self.threads:
            thread.join()
        assert self.total.tolist() == [float(self.n)] * 2
        if self.reads == "what the step writes":
            assert all(len(set(x)) == 1 and x[0] <= self.counting.n for x in self.seen)
        else:
            assert not self.seen or self.seen[-1] == [float(self.n)] * 2


@contextmanager
def handling(handler: Callable[..., None]) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def places_of(where: list[str]) -> list[int]:
    """The places in the modules of captured steps, evenly; then those elsewhere, a fourth as many."""
    found: list[int] = []
    for most, are_there in ((PLACES, True), (max(PLACES // 4, 1), False)):
        some = [i for i, file in enumerate(where) if ("/replays/" in file) == are_there]
        found += some[:: max(-(-len(some) // most), 1)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["its own", "nothing", "what the step writes"])
@pytest.mark.parametrize("who", ["a handler", "a thread"])
@pytest.mark.parametrize("n_before", [1, 3 + 16])
def test_intrusion_while_a_step_is_observed_is_no_part_of_it(
    n_before: int, who: str, reads: str
) -> None:
    def tried(at: int | None, where: list[str] | None = None) -> None:
        counting = Counting()
        intruder = Intruder(counting, reads)
        torch_pjrt.sync()
        with handling(intruder.come):
            come = (
                (lambda: signal.raise_signal(signal.SIGUSR1))
                if who == "a handler"
                else intruder.come_on_a_thread
            )
            counting.run(n_before)
            with intruding(at, come, where, most_calls=2):
                result = counting.captured(counting.one)
            counting.n += 1
            assert result.item() == 8.0 * counting.n
            intruder.check()
            n = intruder.n
            replays = counting.captured.replays
            counting.run(4)
            assert counting.captured.replays >= replays + 2 - (reads != "its own"), at
            counting.run(2)
            assert counting.captured.replays >= replays + 3, at
            assert intruder.n == n
            intruder.check()

    where: list[str] = []
    tried(None, where)
    places = places_of(where)
    assert len(places) >= min(PLACES, 4)
    for at in places:
        tried(at)


@pytest.mark.parametrize("reads", ["its own", "nothing"])
def test_what_a_handler_does_in_each_observed_call_is_not_replayed(reads: str) -> None:
    counting = Counting()
    intruder = Intruder(counting, reads)
    comes = [True]

    def step(x: torch.Tensor) -> torch.Tensor:
        result = counting.step(x)
        if comes[0:1] == [True]:
            signal.raise_signal(signal.SIGUSR1)
        return result

    captured = torch_pjrt.capture(step)
    with handling(intruder.come):
        for n in range(1, 7):
            assert captured(counting.one).item() == 8.0 * n
            assert intruder.n == n
            intruder.check()
    with handling(lambda *_: None):
        for n in range(7, 14):
            assert captured(counting.one).item() == 8.0 * n
            intruder.check()
    assert captured.replays == 5


def test_threads_that_train_do_not_change_what_a_step_is_captured_as() -> None:
    """Another thread runs programs, captured steps, operators on the CPU, and writes to tensors.

    What it binds anew while a call is observed has the next one observed again, until it rests.
    """
    stop, failed = threading.Event(), []
    ready = threading.Barrier(2)

    def other() -> None:
        try:
            counting = Counting()
            target = torch.zeros(3, device="pjrt")
            counting.run(5)
            ready.wait(HANGS_S)
            while not stop.is_set():
                counting.run()
                target.copy_(torch.full((3,), float(counting.n)))
                assert (target + 1).clone()[0].item() == counting.n + 1.0
        except BaseException as error:
            failed.append(error)
            ready.abort()

    thread = threading.Thread(target=other)
    thread.start()
    steps = [Counting() for _ in range(20)]
    try:
        ready.wait(HANGS_S)
        for counting in steps:
            counting.run(10)
    finally:
        stop.set()
        thread.join()
    assert failed == []
    for counting in steps:
        counting.run(5)
        assert counting.captured.replays
        assert counting.captured.restarts == []


def test_tuples_that_another_thread_builds_stay_its_own_while_all_objects_are_looked_at() -> None:
    """Python raises `SystemError` when it resizes a tuple that somebody else holds."""
    stop, failed = threading.Event(), []

    def build() -> None:
        try:
            while not stop.is_set():
                assert len(tuple(i for i in range(200))) == 200
        except BaseException as error:
            failed.append(error)

    kept = torch.zeros(3, device="pjrt")
    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(100):
            assert any(x is buffer_of(kept) for x in every(Buffer))
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_one_captured_step_may_be_called_by_several_threads() -> None:
    counting = Counting()
    results: list[float] = []
    numbers = itertools.count()

    def call() -> None:
        while next(numbers) < 60:
            results.append(counting.captured(counting.one).item())

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results) == [8.0 * (i + 1) for i in range(60)]
    assert counting.captured.replays > 30


# It says so where the other thread comes between often enough, which is chance.
@pytest.mark.filterwarnings("ignore:`step` was recorded 4 times and never replayed")
def test_what_the_step_sees_may_change_on_another_thread_while_it_is_looked_at() -> None:
    counting = Counting()
    stop = threading.Event()

    def change() -> None:
        for i in itertools.count():
            if stop.is_set():
                return
            setattr(counting.adding, f"attribute{i % 50}", i)
            counting.adding.others[f"key{i % 50}"] = [i]
            if i % 50 == 49:
                for k in range(50):
                    delattr(counting.adding, f"attribute{k}")
                    del counting.adding.others[f"key{k}"]

    counting.run()  # PyTorch imports much in the first call: a minute, while another thread takes its turns
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(100):
            try:
                result = counting.captured(counting.one)
            except CaptureError:  # before it ran anything, or after the check of a recording did
                assert counting.weight[0].item() - counting.n in (0, 1)
                counting.n = int(counting.weight[0].item())
                continue
            counting.n += 1
            assert result.item() == 8.0 * counting.n
    finally:
        stop.set()
        thread.join()
    assert counting.weight.tolist() == [float(counting.n)] * 4
