"""Calls with counted tensors: recorded on the room, so that the program serves every count.

The table says what an operator needs (`tensor/padding.py`); some operators have a way of their own. What
cannot be done on the room is done on the true elements, by a program for that count.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.tensor import counted_folds, counted_places, record
from torch_pjrt.tensor.bind import mapped
from torch_pjrt.tensor.buffer import buffer_of, look_of, wrap
from torch_pjrt.tensor.counted_run import Unsuited, Way, as_ordinary, padded_call
from torch_pjrt.tensor.counts import is_counted
from torch_pjrt.tensor.padding import padding_of
from torch_pjrt.tensor.schema import Plan
from torch_pjrt.tensor.view import store, true_look, value_of

WAYS: dict[Any, Way] = {**counted_folds.WAYS, **counted_places.WAYS}


def call(op: Any, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what `op(*args, **kwargs)` does, where some of its tensors may be counted."""
    given = bound(plan, args, kwargs)
    if not plan.outs and not plan.mutates:
        results = on_room(plan.functional, given)
        if results is not NotImplemented:
            return results
    elif not plan.outs and plan.writes == ("self",):
        target = given["self"]
        result = on_room(plan.functional, given)
        if result is not NotImplemented and takes(target, result):
            return target
    return on_true_elements(op, plan, args, kwargs)


def bound(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the functional overload by name."""
    given = dict(kwargs)
    places = [a for a in plan.arguments if not a.keyword_only]
    for place, argument in enumerate(places):
        if argument.name not in given:
            given[argument.name] = args[place] if place < len(args) else argument.default
    for argument in plan.arguments:
        given.setdefault(argument.name, argument.default)
    return given


def takes(target: torch.Tensor, result: torch.Tensor) -> bool:
    """Give an in-place operator's target its result; False, and nothing done, where PyTorch may refuse."""
    if (result.dtype, result.shape) != (target.dtype, target.shape):
        return False
    old, new = buffer_of(target), buffer_of(result)
    if not is_counted(new):
        if is_counted(old) or not look_of(target)[0].dense:
            return False
        store(target, value_of(result))
        return True
    if not is_counted(old) or new.face is not old.face or new.dim != old.dim:
        return False
    if (target.shape, target.stride()) != (old.face.shape, old.face.strides):
        return False
    old.padded, old.padded_face, old.count = new.padded, new.padded_face, new.count
    return True


def on_room(op: Any, given: dict[str, Any]) -> Any:
    """The results of a functional overload, computed on the room; `NotImplemented` if it cannot be."""
    way = WAYS.get(op)
    try:
        if way is not None:
            return way(op, given)
        padding = padding_of(op)
        if padding is None:
            return NotImplemented
        return padded_call(op, given, padding)
    except Unsuited:
        return NotImplemented


def on_true_elements(op: Any, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call on tensors without room: right for any operator, with a program for each count."""

    def cut(t: torch.Tensor) -> torch.Tensor:
        buffer = buffer_of(t)
        if not is_counted(buffer):
            return t
        if plan.mutates:
            buffer.value = buffer.value
            return t
        value, face = true_look(t, buffer)
        alias = wrap(value, face) if face.dense else wrap(value, value.face)
        torch._C._set_conj(alias, t.is_conj())
        torch._C._set_neg(alias, t.is_neg())
        return alias

    with as_ordinary():
        return record.call(op, tuple(mapped(args, cut)), mapped(kwargs, cut))
