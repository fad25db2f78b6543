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
"""


def said(python: Python, script: str, before: str = "", **variables: str) -> Any:
    """What the script's last line has printed, in a process of its own."""
    whole = f"import gc\n{before}{PRELUDE}{script}"
    return json.loads(python(whole, **variables).stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("threshold", "expected"), [(None, 20_000), ("5000", 5_000), ("0", None), ("10", None)]
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
def test_numbers_that_the_user_has_chosen_are_left_alone(python: Python, when: str) -> None:
    chosen = "gc.set_threshold(900, 7, 8)\n"
    script = """
kept = []
for n in range(20):
    kept.append([[] for _ in range(1000)])
    step(1)
print(json.dumps(gc.get_threshold()))
"""
    is_later = when == "later"
    before, script = ("", chosen + script) if is_later else (chosen, script)
    assert said(python, script, before) == [900, 7, 8]


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


def test_while_the_device_starts_nobody_looks_at_all_objects(python: Python) -> None:
    """JAX is imported, and by PyTorch's optimizers Dynamo."""
    script = """
import gc, json, sys, torch, torch_pjrt
looked = []
gc.callbacks.append(lambda phase, info: looked.append(info["generation"]) if phase == "start" else None)
x = torch.ones(2, device="pjrt", requires_grad=True)
torch.optim.SGD([x], lr=0.1).zero_grad()
(x + 1).tolist()
print(json.dumps(["torch._dynamo" in sys.modules, looked]))
"""
    has_imported, looked = json.loads(python(script, fresh=True).stdout)
    assert has_imported
    assert 2 not in looked


@pytest.mark.parametrize("kind", ["lazy", "compiled", "captured"])
def test_garbage_of_steps_goes_as_soon_as_it_ever_did(python: Python, kind: str) -> None:
    """Each step leaves a tensor in a cycle: how many are alive at most."""
    script = f"""
class Node:
    pass

def work(x):
    return x.sin() + 1

if {kind!r} == "captured":
    work = torch_pjrt.capture(work)
elif {kind!r} == "compiled":
    work = torch.compile(work, backend="pjrt")
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


@pytest.mark.parametrize("is_off", [False, True])
def test_a_collector_that_is_off_stays_off(python: Python, is_off: bool) -> None:
    script = f"""
step(1)
{"gc.disable()" if is_off else ""}
looked.clear()
kept = []
for n in range(20):
    kept.append([[] for _ in range(1000)])
    step(10)
print(json.dumps([len(looked), gc.isenabled()]))
"""
    n_looks, is_on = said(python, script)
    assert (n_looks > 5) is (not is_off)
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
