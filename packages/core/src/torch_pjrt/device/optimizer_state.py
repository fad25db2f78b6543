"""The state of an optimizer is made before its first step, apart from it.

PyTorch's optimizers make their state, mostly zeros, in the first step. Recorded with the rest of that step it
would make it another program than that of all steps to come, and each model would be compiled twice. By
itself it is arrays of one number each, for which no program is needed (`run/fills.py`).
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any
from weakref import WeakSet

import torch
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from torch_pjrt.device import gradient_scaling
from torch_pjrt.device.counting_optimizers import count_on_the_host
from torch_pjrt.graph.tape import Tape, onto, state
from torch_pjrt.run.sync import run_pending
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import buffer_of, is_pjrt

Group = dict[str, Any]
Maker = Callable[[Group, Sequence[torch.Tensor]], None]

# Whose `_init_group` makes state from shapes and dtypes alone, and changes nothing else.
_BY_SHAPES = ("Adadelta", "Adam", "Adamax", "AdamW", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop")
# Of these: who takes the shapes from gradients (`full_like(grad, lr)`).
_OF_GRADIENTS = ("Muon", "Rprop")

# Those that make their state in their first step, and have taken it.
_begun: WeakSet[Optimizer] = session.own("optimizers that have begun", WeakSet())
_told: OrderedDict[int, Callable[[Optimizer], object]] = session.own(
    "who is told of optimizers' steps", OrderedDict()
)


def install() -> None:
    """From now on PyTorch's optimizers make the state of parameters on the device so."""
    if session.once("optimizers make their state before their first step"):
        register_optimizer_step_pre_hook(_before_step)


def add_optimizer_hook(before_step: Callable[[Optimizer], object]) -> RemovableHandle:
    """Have a function called with each optimizer before each of its steps, and before its state is made.

    PyTorch's own hooks of optimizers are called in the order in which they were added, and so, for a first
    step, perhaps when the state is there. What it raises comes through to who has called `step`.

        >>> handle = add_optimizer_hook(lambda optimizer: print(len(optimizer.state), "states"))
        >>> w = torch.ones(2, device="pjrt", requires_grad=True)
        >>> w.sum().backward()
        >>> torch.optim.Adam([w]).step()
        0 states
        >>> handle.remove()
    """
    install()
    handle = RemovableHandle(_told)
    _told[handle.id] = before_step
    return handle


def _before_step(optimizer: Optimizer, args: Any, kwargs: dict[str, Any]) -> Any:
    """Also tell who wants to know; what is given back are other arguments of the step."""
    for tell in tuple(_told.values()):
        tell(optimizer)
    is_traced = torch.compiler.is_compiling()  # by Dynamo: then it is on no tape
    if not is_traced:
        state.tape.begin_step()
        if not state.tape.nested:
            count_on_the_host(optimizer)
    groups = optimizer.param_groups
    if len(optimizer.state) >= sum(len(group["params"]) for group in groups):
        return None  # as before nearly all steps
    if gradient_scaling.is_deciding() or state.tape.nested:
        return None
    make = _maker(optimizer)
    if make is None:
        if not is_traced:
            state.tape.makes_state = optimizer not in _begun
            _begun.add(optimizer)
        return None
    if len(args) > 1 and callable(args[1]):  # the first one is the optimizer
        return (args[0], _with_state(args[1], optimizer, make), *args[2:]), kwargs
    if callable(closure := kwargs.get("closure")):
        return args, {**kwargs, "closure": _with_state(closure, optimizer, make)}
    _make_state(optimizer, make)
    return None


def _with_state(closure: Callable[[], Any], optimizer: Optimizer, make: Maker) -> Callable[[], Any]:
    """A closure behind which gradients are there makes the state, too."""

    @wraps(closure)
    def with_state() -> Any:
        loss = closure()
        _make_state(optimizer, make)
        return loss

    return with_state


def _make_state(optimizer: Optimizer, make: Maker) -> None:
    groups = optimizer.param_groups
    new = [(g, ps) for g in groups if _has_state(g) and (ps := _without_state(optimizer, g))]
    # Parameters that this step's program makes have it be another one in any case, and are not there yet.
    if not new or any(_is_pending(p) for _, parameters in new for p in parameters):
        return
    try:
        with torch.no_grad(), onto(Tape()):
            for group, parameters in new:
                make(group, parameters)
            tape = state.tape  # the last, if there were too many for one
        run_pending(tape, "an optimizer's state")
    except BaseException:  # no room, say: the next step begins as this one did
        for _, parameters in new:
            for p in parameters:
                optimizer.state.pop(p, None)
        raise


def _has_state(group: Group) -> bool:
    """Whether its parameters have a state that is known: of SGD a momentum that begins as the gradient."""
    return "dampening" not in group or bool(group["momentum"] and not group["dampening"])


def _without_state(optimizer: Optimizer, group: Group) -> list[torch.Tensor]:
    return [
        p
        for p in group["params"]
        if p.grad is not None
        and not optimizer.state.get(p)
        and is_pjrt(p)
        and p.grad.layout == torch.strided
    ]


def _is_pending(parameter: torch.Tensor) -> bool:
    value = buffer_of(getattr(parameter, "_local_tensor", parameter)).value  # a DTensor's part
    return value is None or value.array is None


def _maker(optimizer: Optimizer) -> Maker | None:
    """What makes the state of parameters of a group, as the optimizer's `step` would; None if unknown."""
    found: Any = getattr(type(optimizer), "_init_group", None)
    if found is getattr(SGD, "_init_group", ()):
        return lambda _, parameters: _of_sgd(optimizer, parameters)
    if found not in _ways_of(_BY_SHAPES):
        return None
    n_lists = len(inspect.signature(found).parameters) - 2  # all but the optimizer and the group
    of_gradients = found in _ways_of(_OF_GRADIENTS)

    def make(group: Group, parameters: Sequence[torch.Tensor]) -> None:
        with _empty_gradients(parameters) if of_gradients else nullcontext():
            found(optimizer, {**group, "params": parameters}, *([] for _ in range(n_lists)))

    return make


def _ways_of(names: Sequence[str]) -> list[Any]:
    """How PyTorch's optimizers of these names make their state; some PyTorch may lack one."""
    return [getattr(getattr(torch.optim, name, None), "_init_group", ()) for name in names]


@contextmanager
def _empty_gradients(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Meanwhile gradients have no content: what is made like a pending one would have it computed first."""
    gradients = [p.grad for p in parameters]
    try:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = None if gradient is None else torch.empty_like(gradient)
        yield
    finally:
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient


def _of_sgd(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> None:
    """Momentum begins as the first gradient. So it does as `momentum * -0.0 + gradient`, bit by bit."""
    for p in parameters:
        optimizer.state[p]["momentum_buffer"] = torch.full_like(p, -0.0)
