"""What a handler raises, for a signal within a quiet block, comes out of the call: no finalizer takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

INTERRUPTED_AT_EACH = """
import signal, sys, threading
import torch
from torch import nn

import torch_pjrt
from torch_pjrt.interrupts.quiet import quiet

kind = {kind!r}

class Interrupted(BaseException):
    pass

def interrupt(*_):
    raise Interrupted

entered, at = 0, 0
enter = quiet.__enter__

def entering(self):
    global entered
    enter(self)
    if threading.current_thread() is threading.main_thread():
        entered += 1
        if entered == at:
            signal.raise_signal(signal.SIGALRM)

model = nn.Linear(4, 4).to("pjrt")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_of = torch.compile(lambda x: model(x).square().sum(), backend="pjrt", dynamic=False)
if kind != "compiled":
    loss_of = lambda x: model(x).square().sum()

def step(x):
    optimizer.zero_grad()
    loss = loss_of(x)
    loss.backward()
    optimizer.step()
    return loss.detach()

if kind == "captured":
    step = torch_pjrt.capture(step)
n = 0

def run():
    global n
    n += 1  # a new shape: the step is recorded and compiled
    batches = [torch.ones(n, 4)] * 3
    if kind == "loader":
        batches = torch_pjrt.DeviceLoader(batches)
    for x in batches:
        step(x.to("pjrt")).item()

run()
lost, ignored = [], []
sys.unraisablehook = lambda said: ignored.append(f"{{said.object}}: {{said.exc_value!r}}")
signal.signal(signal.SIGALRM, interrupt)
quiet.__enter__ = entering
while True:
    entered, at = 0, at + 1
    try:
        run()
    except Interrupted:
        continue
    if entered < at:
        break
    lost.append(at)
print(at - 1, lost, ignored)
"""


@pytest.mark.slow("rows")
@pytest.mark.parametrize("kind", ["lazy", "captured", "compiled", "loader"])
def test_an_interrupt_in_any_of_a_step_s_blocks_ends_the_step(
    kind: str, python: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    n, said = python(INTERRUPTED_AT_EACH.format(kind=kind)).stdout.split(" ", 1)

    assert said.strip() == "[] []"
    assert int(n) > 3
    record_property("moments of interrupts", int(n))
