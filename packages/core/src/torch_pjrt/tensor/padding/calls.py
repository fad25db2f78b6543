"""Calls with padded tensors: recorded on the padded array, so that the program serves every count.

The table has the rule of each operator (`tensor/padding/table.py`). What cannot be done on the padded
array is done on the true elements, by a program for that count.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_pjrt.tensor.padding.dims import Unsuited
from torch_pjrt.tensor.padding.recorded import DataDependentCall, as_ordinary
from torch_pjrt.tensor.padding.table import rule_of
from torch_pjrt.tensor.recording import record
from torch_pjrt.tensor.recording.argument_binding import mapped
from torch_pjrt.tensor.recording.schema import OverloadPlan
from torch_pjrt.tensor.storage.buffer import buffer_of, spec_and_offset, wrap
from torch_pjrt.tensor.storage.counts import is_data_dependent
from torch_pjrt.tensor.storage.view import store, true_look, value_of


def call(op: Any, plan: OverloadPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do what `op(*args, **kwargs)` does, where some of its tensors may be padded."""
    given = bound(plan, args, kwargs)
    if not plan.outs and not plan.mutates:
        results = on_padding(plan.functional, given)
        if results is not NotImplemented:
            return results
    elif not plan.outs and plan.writes == ("self",):
        target = given["self"]
        result = on_padding(plan.functional, given)
        if result is not NotImplemented and takes(target, result):
            return target
    return on_true_elements(op, plan, args, kwargs)


def bound(plan: OverloadPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the functional overload by name."""
    given = dict(kwargs)
    positions = [a for a in plan.arguments if not a.keyword_only]
    for position, argument in enumerate(positions):
        if argument.name not in given:
            given[argument.name] = args[position] if position < len(args) else argument.default
    for argument in plan.arguments:
        given.setdefault(argument.name, argument.default)
    return given


def takes(target: torch.Tensor, result: torch.Tensor) -> bool:
    """Give an in-place operator's target its result; False, and nothing done, where PyTorch may refuse."""
    if (result.dtype, result.shape) != (target.dtype, target.shape):
        return False
    old, new = buffer_of(target), buffer_of(result)
    if not is_data_dependent(new):
        if is_data_dependent(old) or not spec_and_offset(target)[0].dense:
            return False
        store(target, value_of(result))
        return True
    if not is_data_dependent(old) or new.spec is not old.spec or new.dim != old.dim:
        return False
    if (target.shape, target.stride()) != (old.spec.shape, old.spec.strides):
        return False
    old.become(new)
    return True


def on_padding(op: Any, given: dict[str, Any]) -> Any:
    """The results of a functional overload, computed on padded arrays; `NotImplemented` if that cannot be."""
    rule = rule_of(op)
    if rule is None:
        return NotImplemented
    try:
        return rule(DataDependentCall(op, given))
    except Unsuited:
        return NotImplemented


def on_true_elements(
    op: Any, plan: OverloadPlan, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The call on tensors without padding: right for any operator, with a program for each count."""

    def cut(t: torch.Tensor) -> torch.Tensor:
        buffer = buffer_of(t)
        if not is_data_dependent(buffer):
            return t
        if plan.mutates:
            buffer.value = buffer.value
            return t
        value, spec = true_look(t, buffer)
        alias = wrap(value, spec) if spec.dense else wrap(value, value.spec)
        torch._C._set_conj(alias, t.is_conj())
        torch._C._set_neg(alias, t.is_neg())
        return alias

    with as_ordinary():
        return record.call(op, tuple(mapped(args, cut)), mapped(kwargs, cut))


record.call_padded = call
