"""A new batch of a loader is where a step begins: what is still pending belongs to none, and is run.

So the first steps of training are the program of all steps, whatever was recorded before (a model that is
made on the device, a sum that begins as zeros), and so are those behind which a running sum of losses is
pending. Where no gradients are recorded, each batch is a program: an evaluation computes one batch while
it records the next, and any number of batches runs the same program.

Batches between which gradients are accumulated stay one program with the optimizer's step.
"""

from __future__ import annotations

import threading

import torch

from torch_pjrt.client.client import is_in_bad_fork
from torch_pjrt.client.elsewhere import is_elsewhere_too
from torch_pjrt.graph.tape import Tape, state
from torch_pjrt.run.sync import sync
from torch_pjrt.session import session


class _Position(threading.local):
    """Whether a thread is between two steps: no batch has come since the last optimizer's step, or ever."""

    between: bool = True

    def forget(self) -> None:
        self.between = True


_position = session.own("whether a thread is between two steps", _Position())


def end_step() -> None:
    """Sync at the end of an optimizer's step: one program a step, without a `mark_step`."""
    sync("optimizer step")
    _position.between = True


def run_between_steps() -> None:
    """Run what is pending, between two steps or without gradients; called before a batch is fetched.

    Nothing is run on a nested tape, and where other processes would have to run it too.
    """
    if _position.between or not torch.is_grad_enabled():
        tape = state.tape
        if tape.values and not (tape.nested or is_in_bad_fork()) and _is_own(tape):
            sync("a new batch")


def begin_step() -> None:
    """Called when a batch has come: with gradients, a step begins that an optimizer ends."""
    if torch.is_grad_enabled():
        _position.between = False


def _is_own(tape: Tape) -> bool:
    """Whether no chips of other processes are in it."""
    arrays = [value.array for value in tape.inputs]
    return tape.joint is None and not any(
        a is not None and is_elsewhere_too(a.sharding) for a in arrays
    )
