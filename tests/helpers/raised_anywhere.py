"""A script: an exception that another thread raises here comes at places of a step; what is whole after it?

    python raised_anywhere.py KIND FROM [all]

It says how many places a step comes by, each place that it begins with, and what was wrong after it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torch_pjrt
from intrusions import raised_from_elsewhere
from torch_pjrt.interrupts.signals import waits
from torch_pjrt.replays import step as steps
from torch_pjrt.run import sync
from torch_pjrt.tensor.storage import transfer

# Here something is begun that has to be ended, or is done that is not repeated: each place is tried.
ONCE = ("quiet.py", "array_slots.py")
EACH = 40  # of the other places


class Raised(BaseException):
    """What comes from elsewhere."""


class Life:
    """A model that learns: all that its parameters hold is one number, which falls with each step."""

    def __init__(self) -> None:
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2)).to("pjrt")
        with torch.no_grad():
            for p in self.layers.parameters():
                p.zero_()
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.125)
        self.x = torch.ones(1, 4, device="pjrt")
        self.captured = torch_pjrt.capture(self.learn)

    def learn(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.stack([layer(x).sum() for layer in self.layers]).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def recorded(self) -> None:
        self.learn(self.x).item()

    def replayed(self) -> None:
        self.captured(self.x).item()

    def checked(self) -> None:
        """A replay, then a call that is compared with it, then a replay."""
        self.captured(self.x)
        steps._is_time_to_check = lambda _: True
        self.captured(self.x)
        steps._is_time_to_check = lambda _: False
        self.captured(self.x).item()

    def value(self) -> float:
        [value] = {v for p in self.layers.parameters() for v in p.detach().cpu().flatten().tolist()}
        return value


KINDS: dict[str, Callable[[Life], None]] = {
    "recorded": Life.recorded,
    "replayed": Life.replayed,
    "checked": Life.checked,
}


def faults_after(life: Life, step: Callable[[Life], None], at: int) -> list[str]:
    """What is wrong once an exception came at this place of a step."""
    before = life.value()
    files = (__file__,)
    with contextlib.suppress(Raised), raised_from_elsewhere(at, Raised, files):
        step(life)
    torch.set_grad_enabled(True)  # PyTorch's own `no_grad` may have been cut short
    steps._is_time_to_check = lambda _: False
    faults = []
    if waits.n or not gc.isenabled():
        faults.append("handlers of signals wait, or no garbage is collected, from now on")
        waits.n = 0
        gc.enable()
    if any((sync.listeners, transfer.on_upload, transfer.on_read)):
        faults.append("an observation goes on")
    here = life.value()
    step(life)
    after = life.value()
    if not after < here <= before:
        faults.append(f"parameters were {before}, {here}, {after}")
    return faults


def main(kind: str, first: int, every: bool) -> None:
    """Try the places from this one on."""
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda *_: None  # it may come in a finalizer
    steps._is_time_to_check = lambda _: False
    gc.collect()
    gc.freeze()  # an observed call looks at all objects
    life, step = Life(), KINDS[kind]
    for _ in range(6):
        step(life)
    with raised_from_elsewhere(None, Raised, (__file__,)) as places:
        step(life)
    names = [Path(code.co_filename).name for code, _ in places]
    chosen = [i for i, name in enumerate(names) if every or name in ONCE or i % EACH == 0]
    print("places", len(chosen), flush=True)
    for i in chosen[first:]:
        print("begins", i, flush=True)
        code: Any = places[i][0]
        try:
            faults = faults_after(life, step, i)
        except Exception as error:
            faults = [f"then {type(error).__name__}: {error}"]
            life = Life()
            for _ in range(6):
                step(life)
        for fault in faults:
            print("fault", f"{names[i]}, {code.co_name}, {i}: {fault}".replace("\n", " "))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), "all" in sys.argv[3:])
