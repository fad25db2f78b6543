"""When Python looks for garbage: a step is not interrupted for it, and what steps leave behind goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Python = Callable[..., Any]

PRELUDE = """
import json, weakref
own = gc.get_threshold()
import torch, torch_pjrt
from torch_pjrt.extend import buffer_of

imported = gc.get_threshold()
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]) if phase == "start" else None)
x = torch.ones(2, device="pjrt")

def step(n):
    made = [x.sin() for _ in range(n)]
    total = made[0].clone()
    for each in made[1:]:
        total += each
    return total.tolist()

def work(x):
    return x.sin() + 1
"""
# What a step is made of the prelude's `work`.
STEPS = {
    "lazy": "work",
    "compiled": "torch.compile(work, backend='pjrt')",
    "captured": "torch_pjrt.capture(work)",
}


def said(python: Python, script: str, before: str = "", **variables: str) -> Any:
    """What the script's last line has printed, in a process of its own."""
    whole = f"import gc\n{before}{PRELUDE}{script}"
    return json.loads(python(whole, **variables).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(None, 20_000), ("5000", 5_000), ("0", None), ("10", None), ("3000000000", (1 << 31) - 1)],
)
def test_there_may_be_more_young_objects_once_the_device_has_started(
    python: Python, threshold: str | None, expected: int | None
) -> None:
    variables = {} if threshold is None else {"TORCH_PJRT_GC_THRESHOLD": threshold}
    script = """
print(json.dumps([own, imported, gc.get_threshold()]))
"""
    own, before, after = said(python, script, **variables)
    assert before == own
    assert after == [expected or own[0], *own[1:]]


@pytest.mark.parametrize("when", ["before the device starts", "later"])
@pytest.mark.parametrize("numbers", [(900, 7, 8), (700, 5, 5), (2000, 1000, 1000), (0, 0, 0)])
def test_numbers_that_the_user_has_chosen_are_left_alone(
    python: Python, numbers: tuple[int, int, int], when: str
) -> None:
    chosen = f"gc.set_threshold{numbers}\n"
    script = """
kept = []
for n in range(20):
    kept.append([[] for _ in range(1000)])
    step(1)
print(json.dumps(gc.get_threshold()))
"""
    is_later = when == "later"
    before, script = ("", chosen + script) if is_later else (chosen, script)
    assert said(python, script, before) == [*numbers]


def test_a_step_is_not_interrupted(python: Python) -> None:
    script = """
for _ in range(3):
    step(1000)
looked.clear()
for _ in range(10):
    step(1000)
print(json.dumps(looked))
"""
    assert said(python, script) == []
    assert len(said(python, script, TORCH_PJRT_GC_THRESHOLD="0")) > 20  # as it would be


def test_a_forked_process_has_pythons_numbers(python: Python) -> None:
    script = """
import os
step(1)
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, json.dumps(gc.get_threshold()).encode())
    os._exit(0)
os.wait()
print(json.dumps([own, json.loads(os.read(read, 1000)), gc.get_threshold()]))
"""
    own, in_child, here = said(python, script)
    assert own == in_child
    assert here[0] == 20_000


@pytest.mark.parametrize("block", ["quiet", "uncollected"])
def test_a_process_that_is_forked_beside_a_block_collects_and_calls_handlers(
    python: Python, block: str
) -> None:
    """As by another thread while the main one imports Dynamo, or compiles."""
    script = f"""
import os, signal, threading
from torch_pjrt.interrupts.quiet import {block}
step(1)
read, write = os.pipe()
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))

def fork():
    if os.fork() == 0:
        with {block}():
            pass
        signal.raise_signal(signal.SIGUSR1)
        os.write(write, json.dumps([gc.isenabled(), len(came)]).encode())
        os._exit(0)
    os.wait()

with {block}():
    thread = threading.Thread(target=fork)
    thread.start()
    thread.join()
print(json.dumps([*json.loads(os.read(read, 1000)), gc.isenabled()]))
"""
    assert said(python, script) == [True, 1, True]


def test_while_the_device_starts_nobody_looks_at_many_objects(python: Python) -> None:
    """JAX is imported, and by PyTorch's optimizers Dynamo: half a million objects."""
    script = """
import gc, json, sys, torch, torch_pjrt
looked = []
def look(phase, info):
    if phase == "start":
        looked.append(sum(len(gc.get_objects(g)) for g in range(info["generation"] + 1)))
gc.callbacks.append(look)
x = torch.ones(2, device="pjrt", requires_grad=True)
torch.optim.SGD([x], lr=0.1).zero_grad()
(x + 1).tolist()
gc.collect(0)
print(json.dumps(["torch._dynamo" in sys.modules, looked, len(gc.get_objects())]))
"""
    has_imported, looked, n_objects = json.loads(python(script, fresh=True).stdout)
    assert has_imported
    assert n_objects > 300_000
    assert looked  # it sees looks
    assert max(looked) < n_objects / 10


def test_what_is_frozen_stays_frozen_while_the_device_starts(python: Python) -> None:
    script = """
import gc, json, torch, torch_pjrt
gc.freeze()
before = gc.get_freeze_count()
x = torch.ones(2, device="pjrt", requires_grad=True)
import torch._dynamo
print(json.dumps([before, gc.get_freeze_count()]))
"""
    before, after = json.loads(python(script, fresh=True).stdout)
    assert before > 100_000
    assert after > 0.99 * before  # some have gone


def test_what_calls_the_import_of_dynamo_is_let_go(python: Python) -> None:
    """`torch.fx.wrap` leaves cycles of frames, which hold the frames that called them."""
    script = """
import gc, sys, weakref, torch, torch_pjrt
x = torch.ones(2, device="pjrt") + 1
assert "torch._dynamo" not in sys.modules
class Local: pass
def imports():
    local = Local()
    import torch._dynamo
    return weakref.ref(local)
gc.disable()
print(imports()() is None)
"""
    assert python(script, fresh=True).stdout == "True\n"


@pytest.mark.parametrize("kind", STEPS)
def test_garbage_of_steps_goes_as_soon_as_it_ever_did(python: Python, kind: str) -> None:
    """Each step leaves a tensor in a cycle: how many are alive at most."""
    script = f"""
class Node:
    pass

work = {STEPS[kind]}
alive = weakref.WeakSet()
most = 0
for n in range(600):
    node = Node()
    node.itself, node.tensor, node.others = node, work(x), [Node() for _ in range(20)]
    torch_pjrt.sync()
    alive.add(buffer_of(node.tensor))
    del node
    if n > 300:
        most = max(most, len(alive))
print(json.dumps([most, own[0]]))
"""
    most, own = said(python, script)
    assert most < 2 * own / 20
    assert most > 1  # the net sees what is alive


@pytest.mark.parametrize("kind", STEPS)
def test_old_garbage_goes_from_time_to_time(python: Python, kind: str) -> None:
    """A model in a cycle that has outlived looks of Python's: of these there would be few more."""
    script = f"""
from torch_pjrt.run.garbage import _young

class Trainer:
    pass

work = {STEPS[kind]}
trainer = Trainer()
trainer.itself, trainer.weights = trainer, work(x)
there = weakref.ref(trainer)
gc.collect()
gc.collect()
del trainer
for _ in range(200):
    work(x)
    torch_pjrt.sync()
waits = there() is not None
_young.due = 0
work(x)
torch_pjrt.sync()
looked.clear()
for _ in range(20):
    work(x)
    torch_pjrt.sync()
print(json.dumps([waits, there() is None, looked.count(2)]))
"""
    assert said(python, script) == [True, True, 0]


def test_an_interrupt_leaves_the_numbers_as_they_are(python: Python) -> None:
    """In each of many moments of a look, of which some are within it."""
    script = """
import signal
from torch_pjrt.run import garbage

class Came(Exception):
    pass

def raises(*_):
    raise Came

signal.signal(signal.SIGALRM, raises)
step(1)
n_came = n_within = 0
for n in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + n % 60))
        garbage._look()
        while True:
            pass
    except Came:
        n_came += 1
        n_within += gc.get_threshold() != tuple(garbage._young.raised)
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps([n_came, n_within]))
"""
    n_came, n_within = said(python, script)
    assert n_came == 3000
    assert n_within <= 30  # within the line that ends it, there is no telling


@pytest.mark.parametrize("is_off", [False, True])
def test_a_collector_that_is_off_stays_off(python: Python, is_off: bool) -> None:
    script = f"""
from torch_pjrt.run.garbage import _young
step(1)
_young.due = 0
{"gc.disable()" if is_off else ""}
looked.clear()
kept = []
for n in range(20):
    kept.append([[] for _ in range(1000)])
    step(10)
print(json.dumps([len(looked), gc.isenabled()]))
"""
    n_looks, is_on = said(python, script)
    assert n_looks == 0 if is_off else n_looks > 5
    assert is_on is not is_off


def test_a_frozen_process_can_capture_steps(python: Python) -> None:
    script = """
from torch import nn
model = nn.Linear(4, 4).to("pjrt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(8, 4).to("pjrt")

def train(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()

first = train(batch).item()
gc.freeze()
captured = torch_pjrt.capture(train)
losses = [captured(batch).item() for _ in range(6)]
print(json.dumps([first, *losses, captured.replays]))
"""
    *losses, replays = said(python, script)
    assert replays == 3
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == len(losses)
