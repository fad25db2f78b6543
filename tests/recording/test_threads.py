"""Threads record, read and share tensors at once, and get what one thread alone would get."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from subprocess import CompletedProcess
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.observe.code_positions import line_at, position_of


@pytest.fixture(autouse=True)
def threads_change_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def at_once(*tasks: Callable[[], Any]) -> list[Any]:
    """Each task in a thread of its own; what they returned. Raises what one of them raised."""
    results: list[Any] = [None] * len(tasks)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = tasks[i]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def trained(seed: int, steps: int = 12) -> list[float]:
    """The losses of a model of its own, on data of its own."""
    numbers = torch.Generator().manual_seed(seed)
    weights = [torch.randn(6, 6, generator=numbers).to("pjrt").requires_grad_() for _ in range(3)]
    optimizer = torch.optim.AdamW(weights, lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(5, 6, generator=numbers).to("pjrt")
        for weight in weights:
            x = torch.tanh(x @ weight) * 2
            x[:, 0] += 1
        loss = x.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def test_models_train_side_by_side_as_alone():
    alone = [trained(seed) for seed in range(4)]
    assert at_once(*[lambda seed=seed: trained(seed) for seed in range(4)]) == alone


def test_side_by_side_they_compile_no_more_than_alone(compiled: Callable[[], int]):
    trained(0)
    before = compiled()
    at_once(*[lambda seed=seed: trained(seed) for seed in range(4)])
    assert compiled() == before


def test_sizes_that_one_has_counted_are_ordinary_sizes_to_the_others(compiled: Callable[[], int]):
    x = torch.arange(9, device="pjrt")
    trained(0)
    alone = compiled()

    def count() -> None:
        for n in (5, 6) * 10:  # the sizes of the models
            assert x[x < n].clone().expand(3, n).sum().item() == 3 * sum(range(n))

    at_once(count, *[lambda seed=seed: trained(seed) for seed in range(3)])
    before = compiled()
    assert before > alone
    at_once(count, *[lambda seed=seed: trained(seed) for seed in range(3)])
    assert compiled() == before


def test_one_reads_what_another_has_recorded():
    x = torch.arange(4.0, device="pjrt")
    y = x * 2  # pending on this thread's tape
    [read] = at_once(y.tolist)
    assert read == [0, 2, 4, 6]
    y += 1
    assert (y + x).tolist() == [1, 4, 7, 10]


def test_one_goes_on_with_what_another_has_recorded():
    x = torch.ones(3, device="pjrt")
    y = x + 1
    [z] = at_once(lambda: y * 3)
    assert (z + y).tolist() == [8, 8, 8]


def test_one_reads_while_another_records():
    """The reader closes the other's tape again and again, between any two of its steps."""
    shared = [torch.zeros(2, device="pjrt")]
    n, done = 400, threading.Event()

    def record() -> None:
        try:
            for i in range(n):
                x = shared[0] + 1
                x[0] += 0
                shared[0] = x
                if i % 100 == 99:
                    torch_pjrt.sync()
        finally:
            done.set()

    def read() -> list[list[float]]:
        seen = []
        while not done.is_set():
            seen.append(shared[0].tolist())
        return seen

    seen = at_once(record, read, read)[1:]
    assert shared[0].tolist() == [n, n]
    for values in seen:
        assert values == sorted(values)
        assert all(first == second for first, second in values)


def test_in_place_writes_go_on_while_others_read():
    x = torch.zeros(3, device="pjrt")
    done = threading.Event()

    def write() -> None:
        try:
            for _ in range(300):
                x.add_(1)
        finally:
            done.set()

    def read() -> list[float]:
        seen = []
        while not done.is_set():
            seen.append(x.sum().item())
        return seen

    seen = at_once(write, read)[1]
    assert x.tolist() == [300, 300, 300]
    assert seen == sorted(seen)
    assert all(total % 3 == 0 for total in seen)


def test_one_model_serves_several():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)).eval()
    batches = torch.randn(3, 20, 5, 4)
    with torch.no_grad():
        expected = [[model(x) for x in part] for part in batches]
        model.to("pjrt")

    def serve(part: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [model(x.to("pjrt")).cpu() for x in part]

    results = at_once(*[lambda part=part: serve(part) for part in batches])
    torch.testing.assert_close(results, expected)


def test_a_thread_that_moves_batches_changes_nothing():
    batches = [torch.full((3,), float(i)) for i in range(50)]

    def total(batches: Any) -> float:
        sum_ = torch.zeros(3, device="pjrt")
        for batch in batches:
            sum_ += batch * 2
        return sum_.sum().item()

    ready: queue.Queue[Any] = queue.Queue(4)

    def move() -> None:
        for batch in batches:
            ready.put(batch.to("pjrt") + 0)  # recorded by this thread
        ready.put(None)

    assert at_once(move, lambda: total(iter(ready.get, None)))[1] == total(
        b.to("pjrt") for b in batches
    )


def test_threads_draw_different_numbers():
    together = threading.Barrier(3)

    def draw() -> torch.Tensor:
        x = torch.rand(1000, device="pjrt")
        together.wait()
        return x.cpu()

    torch.manual_seed(0)
    drawn = at_once(draw, draw, draw)
    for i, x in enumerate(drawn):
        assert 0.4 < x.mean() < 0.6
        for y in drawn[:i]:
            assert not torch.equal(x, y)


def test_what_one_thread_draws_does_not_depend_on_those_that_draw_nothing():
    def drawn() -> list[float]:
        torch.manual_seed(3)
        return torch.rand(4, device="pjrt").tolist() + torch.rand(4, device="pjrt").tolist()

    alone = drawn()

    def computed() -> list[float]:
        return (torch.ones(3, device="pjrt") + 1).tolist()

    assert at_once(drawn, computed)[0] == alone


def test_what_a_finished_thread_recorded_is_there():
    [y] = at_once(lambda: torch.ones(2, device="pjrt") * 5)
    assert (y + 1).tolist() == [6, 6]


def test_the_first_tensors_of_two_threads_start_one_device(
    python: Callable[..., CompletedProcess[str]],
):
    done = python("""
import sys, threading, torch
sys.setswitchinterval(1e-6)
results = []
def make(i):
    x = torch.full((3,), float(i), device="pjrt")
    results.append((x + torch.arange(3, device="pjrt")).sum().item() - 3 * i)
threads = [threading.Thread(target=make, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(results)
""")
    assert done.stdout.strip() == "[3.0, 3.0, 3.0, 3.0]"


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="processes do not fork here")
def test_a_process_forked_while_a_thread_compiles_raises_and_does_not_hang(
    python: Callable[..., CompletedProcess[str]],
):
    done = python("""
import os, threading, warnings, torch
from torch_pjrt.run import sync
warnings.simplefilter("ignore")
x = torch.ones(2, device="pjrt") + 1
locked, forked = threading.Event(), threading.Event()
def hold():
    with sync.one_at_a_time():
        locked.set()
        forked.wait()
thread = threading.Thread(target=hold)
thread.start()
locked.wait()
child = os.fork()
if not child:
    try:
        x.tolist()
    except Exception as error:
        os._exit(0 if type(error).__name__ == "DeviceError" else 1)
    os._exit(2)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), x.tolist())
""")
    assert done.stdout.strip() == "0 [2.0, 2.0]"


def test_lines_that_threads_read_at_for_the_first_time_are_their_own():
    """Each of many lines is found by eight threads at once."""

    def readers(thread: int) -> list[Callable[[], FrameType]]:
        source = "import sys\ndef read():\n" + "\n" * thread + "    return sys._getframe()"
        made = []
        for _ in range(400):
            scope: dict[str, Any] = {}
            exec(source, scope)
            made.append(scope["read"])
        return made

    made = [readers(thread) for thread in range(8)]
    begin = threading.Barrier(len(made))

    def positions(thread: int) -> list[int]:
        begin.wait()
        return [position_of(read()) for read in made[thread]]

    found = at_once(*[partial(positions, thread) for thread in range(len(made))])

    assert len({position for one in found for position in one}) == 8 * 400
    lines = [{line.number for p in one if (line := line_at(p))} for one in found]
    assert lines == [{3 + thread} for thread in range(8)]
