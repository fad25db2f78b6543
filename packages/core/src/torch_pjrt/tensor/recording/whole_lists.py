"""Lists of tensors of this device, taken as a whole: the parameters and gradients of an optimizer's step.

`torch._foreach_*` takes hundreds of tensors a call. Most look like what their storage holds; then an element
costs a look at its buffer. Of a view (a gradient that was transposed, say) a read is recorded. No element has
a slot of its own in the call's key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import torch

from torch_pjrt.graph.signature import NumberSlot, Signature, Slot
from torch_pjrt.graph.tape import Value, current
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.tensor.recording.schema import OverloadPlan
from torch_pjrt.tensor.storage.buffer import Buffer
from torch_pjrt.tensor.storage.counts import DATA_DEPENDENT
from torch_pjrt.tensor.storage.view import look

_storage_of = torch._C.TensorBase.untyped_storage
_is_negated = torch._C.TensorBase.is_neg


class WholeList:
    """A list of tensors of this device.

    values, specs, buffers    one of each tensor.
    has_views     some look otherwise than their buffers do: a result cannot take its buffer's place.
    """

    __slots__ = ("buffers", "has_views", "specs", "values")

    def __init__(self) -> None:
        self.has_views = False
        self.values: list[Value] = []
        self.specs: list[TensorSpec] = []
        self.buffers: list[Buffer] = []


def whole_list(given: Sequence[Any]) -> WholeList | None:
    """The list as a whole; None where an element is anything else: it needs the general way."""
    try:
        buffers: list[Buffer] = [s.buffer for s in map(_storage_of, given)]  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, TypeError):  # a tensor of another device, or none
        return None
    values = [b.value for b in buffers if b.__class__ is Buffer]
    if len(values) != len(buffers) or None in values or True in map(_is_negated, given):
        return None
    found = WholeList()
    found.buffers = buffers
    if True in [b.viewed for b in buffers]:
        return found if _look_at_views(found, given) else None
    found.values = values  # pyright: ignore[reportAttributeAccessIssue]
    found.specs = [b.spec for b in buffers]
    return None if any(spec.is_complex for spec in {*found.specs}) else found


def _look_at_views(found: WholeList, given: Sequence[torch.Tensor]) -> bool:
    """Where some of the tensors may look otherwise than their buffers: whether the list can be a whole."""
    for tensor, buffer in zip(given, found.buffers, strict=True):
        value, spec = buffer.value, buffer.spec
        if buffer.viewed:
            value, spec = look(tensor, buffer)
            if spec is not buffer.spec:
                found.has_views = True
        if value is None or spec is DATA_DEPENDENT or spec.is_complex:
            return False
        found.values.append(value)
        found.specs.append(spec)
    return True


@lru_cache(maxsize=1024)
def slots(first: int, n: int) -> tuple[Slot, ...]:
    """`n` slots of tensors from `first` on."""
    return tuple([Slot(i) for i in range(first, first + n)])


@lru_cache(maxsize=1024)
def number_slots(first: int, n: int, kind: type) -> tuple[NumberSlot, ...]:
    """`n` slots of numbers from `first` on, all of one kind."""
    return tuple([NumberSlot(i, kind) for i in range(first, first + n)])


def are_apart(lists: Mapping[str, WholeList] | None) -> bool:
    """Whether it is known that no buffer of the first list is in it twice, or in another of the lists."""
    if lists is None:
        return False
    written, *others = [found.buffers for found in lists.values()]
    distinct = set(written)
    return len(distinct) == len(written) and distinct.isdisjoint(chain.from_iterable(others))


def store(
    lists: Mapping[str, WholeList] | None,
    plan: OverloadPlan,
    signature: Signature,
    values: Sequence[Value],
) -> bool:
    """Write all results to the lists that the schema says, if they look as these do; else do nothing."""
    if lists is None or not all(name in lists for name in plan.writes):
        return False
    written = [lists[str(name)] for name in plan.writes]
    if any(found.has_views for found in written):
        return False
    specs = [spec for found in written for spec in found.specs]
    if len(specs) != len(signature.outs) or not all(map(_looks_as, signature.outs, specs)):
        return False
    buffers = [buffer for found in written for buffer in found.buffers]
    put(buffers, values)
    return True


def put(buffers: Sequence[Buffer], values: Sequence[Value]) -> None:
    """The values in the place of what the buffers hold."""
    try:
        _put(buffers, values)
    except BaseException:  # an interrupt comes after all: putting them again does no harm
        _put(buffers, values)
        raise


def _looks_as(result: TensorSpec, target: TensorSpec) -> bool:
    return result is target or (result.shape == target.shape and result.dtype == target.dtype)


def _put(buffers: Sequence[Buffer], values: Sequence[Value]) -> None:
    tape = current()
    for buffer, value in zip(buffers, values, strict=True):
        old = buffer.value
        if old is not None and value.tape is tape and value.number >= 0 and value.origin is None:
            number = old.number if old.tape is tape else tape.take(old)
            value.origin = number if number < 0 else old.origin  # as `origin_on` says
        buffer.value = value  # arrays are immutable, so two buffers may share one
        if buffer.blank:
            buffer.blank = buffer.viewed = False
