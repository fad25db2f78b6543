"""`torch.amp.GradScaler("pjrt")` without a read per step: the device decides whether a step is taken.

PyTorch reads whether a gradient is infinite, and calls `optimizer.step()` if none is. Here the step is
recorded in any case, and each tensor that it wrote becomes `where(found_inf, before, after)`. That is
the same where a step does nothing but write tensors of the device that were there before. So an
optimizer's first step, which makes its state, is taken as PyTorch does, and so is every step of one that
keeps numbers or tensors on the host. Optimizers that can be captured count on the device meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torch_pjrt.device.counting_optimizers import counting_on_the_device
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.run.batches import end_step
from torch_pjrt.session import session
from torch_pjrt.tensor.storage.buffer import is_pjrt, wrap
from torch_pjrt.tensor.storage.view import store, value_of

Optimizer = torch.optim.Optimizer

# What the state of an optimizer looked like after a step which changed nothing but tensors.
_known: WeakKeyDictionary[Optimizer, Any] = session.own(
    "optimizers whose steps may be undone", WeakKeyDictionary()
)


class _Here(threading.local):
    deciding = False  # whether this thread records a step that may be undone


_here = session.own("steps that may be undone", _Here())


def install() -> None:
    """Replace the method of `GradScaler` that reads; does nothing the second time."""
    original = torch.amp.GradScaler._maybe_opt_step
    if getattr(original, "knows_pjrt", False):
        return

    @wraps(original)
    def maybe_step(
        self: Any, optimizer: Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        found = list(optimizer_state["found_inf_per_device"].values())
        if len(found) != 1 or not is_pjrt(found[0]) or not _may_be_undone(optimizer):
            return original(self, optimizer, optimizer_state, *args, **kwargs)
        with counting_on_the_device([optimizer]):
            if (looks := _looks(optimizer)) is not None and _known.get(optimizer) == looks:
                return _step_unless(found[0], optimizer, lambda: optimizer.step(*args, **kwargs))
            numbers = _numbers(optimizer)
            result = original(self, optimizer, optimizer_state, *args, **kwargs)
            taken = not found[0].item()  # it was read just now
            if taken and _numbers(optimizer) == numbers:
                _known[optimizer] = _looks(optimizer)
        return result

    maybe_step.knows_pjrt = True  # type: ignore[attr-defined]
    torch.amp.GradScaler._maybe_opt_step = maybe_step  # type: ignore[method-assign]


def is_deciding() -> bool:
    """Whether a step is being recorded that may be undone: its program does not end with it."""
    return _here.deciding


def _may_be_undone(optimizer: Optimizer) -> bool:
    """A hook of the user's could do anything, and expects to be called for steps that are taken."""
    return not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _step_unless(found_inf: torch.Tensor, optimizer: Optimizer, step: Callable[[], Any]) -> Any:
    """Record the step, and the choice of what was before where `found_inf` is not 0; then sync."""
    written = list(_tensors(optimizer))
    # New tensors in front of the same values: nothing is recorded.
    before = [wrap(value_of(t), contiguous_spec(t.shape, t.dtype)) for t in written]
    _here.deciding = True
    try:
        result = step()
    finally:
        _here.deciding = False
    with torch.no_grad():
        skip = found_inf != 0
        for t, old in zip(written, before, strict=True):
            store(t, value_of(torch.where(skip, old, t)))
    del before[:], skip
    old = None  # whoever holds a value at a sync makes it a result
    end_step(optimizer)
    return result


def _stepped(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The parameters that a step changes."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield p


def _tensors(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """All that a step writes: parameters and their state."""
    for p in _stepped(optimizer):
        yield from _within(p.detach())
        for x in optimizer.state.get(p, {}).values():
            if x is not None:
                yield from _within(x)


def _within(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor, or those that it is a container around: of a DTensor the part that is here."""
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _within(getattr(tensor, name))
    else:
        yield tensor


def _looks(optimizer: Optimizer) -> Any:
    """What tells that no state is made in a step; None where there is state beside tensors of the device."""
    looks = []
    for p in _stepped(optimizer):
        state = optimizer.state.get(p, {})
        parts = [y for x in (p, *state.values()) if x is not None for y in _within(x)]
        if not all(map(is_pjrt, parts)):
            return None
        looks.append((id(p), *[(k, x is None) for k, x in state.items()]))
    return looks


def _numbers(optimizer: Optimizer) -> Any:
    """The numbers that an optimizer keeps in itself and in its groups."""
    positions = [vars(optimizer), *optimizer.param_groups]
    return [
        {k: x for k, x in position.items() if type(x) in (int, float)} for position in positions
    ]
