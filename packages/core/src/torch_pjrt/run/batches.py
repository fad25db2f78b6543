"""A new batch of a loader is where a step begins: what is still pending belongs to none, and is run.

So the first steps of training are the program of all steps, whatever was recorded before (a model that is
made on the device, a sum that begins as zeros), and so are those behind which a running sum of losses is
pending. Where no gradients are recorded, each batch is a program: an evaluation computes one batch while
it records the next, and any number of batches runs the same program.

Batches between which gradients are accumulated stay one program with the optimizer's step.

A step ends with the optimizer's, so that what comes behind it (an average of weights, a sum of losses) never
makes another program of the whole model. With `settings.step_ends` at "batch" that belongs to the step, which
ends where the next batch is fetched.
"""

from __future__ import annotations

import threading

import torch

from torch_pjrt.client.client import is_in_bad_fork
from torch_pjrt.client.elsewhere import is_elsewhere_too
from torch_pjrt.graph.tape import Tape, state
from torch_pjrt.run.sync import sync
from torch_pjrt.session import session
from torch_pjrt.settings import settings


class _Position(threading.local):
    """Where a thread is.

    between   no batch has come since the last optimizer's step, or ever.
    in_batch  a batch has come, with gradients, and the next one has not been asked for.
    taken     optimizers whose steps are pending, by id: there is one of each in a batch.
    """

    between: bool = True
    in_batch: bool = False

    def __init__(self) -> None:
        self.taken: set[int] = set()

    def forget(self) -> None:
        self.between, self.in_batch = True, False
        self.taken.clear()


_position = session.own("whether a thread is between two steps", _Position())


def end_step(optimizer: object = None) -> None:
    """Sync at the end of an optimizer's step: one program a step, without a `mark_step`.

    Or leave it to the next batch, where `settings.step_ends` says so. Who steps twice without another batch
    has a loop of another kind: steps end as they come, until a batch is fetched again.
    """
    _position.between = True
    if settings.step_ends == "batch" and _position.in_batch and _is_own(state.tape):
        if id(optimizer) not in _position.taken:
            _position.taken.add(id(optimizer))
            return
        _position.in_batch = False
    sync("optimizer step")


def run_between_steps() -> None:
    """Run what is pending, between two steps or without gradients; called before a batch is fetched.

    Nothing is run on a nested tape, and where all processes would have to run it, at a batch of each. Where
    several may run a tape as one program, they agree on what they do, or do it part by part.
    """
    _position.in_batch = False
    _position.taken.clear()
    if _position.between or not torch.is_grad_enabled():
        tape = state.tape
        if tape.values and not (tape.nested or is_in_bad_fork()) and _is_own(tape):
            sync("a new batch")


def begin_step() -> None:
    """Called when a batch has come: with gradients, a step begins that an optimizer ends."""
    if torch.is_grad_enabled():
        _position.between, _position.in_batch = False, True


def _is_own(tape: Tape) -> bool:
    """Whether no chips of other processes are in it."""
    arrays = [value.array for value in tape.inputs]
    return not any(a is not None and is_elsewhere_too(a.sharding) for a in arrays)
