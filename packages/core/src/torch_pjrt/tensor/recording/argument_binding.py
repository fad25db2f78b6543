"""One call of an operator, taken apart by its plan: tensors, numbers and what is static.

This is the general way, for any schema and any mixture of arguments. `tensor/recording/kernel_source.py`
writes the same out for the common schemas, to save time; both arrive at the same signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_pjrt.graph.signature import NumberSlot, Slot, hashable
from torch_pjrt.graph.tape import Value
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.tensor.recording.schema import Argument, Kind, OverloadPlan
from torch_pjrt.tensor.recording.whole_lists import WholeList, number_slots, slots, whole_list
from torch_pjrt.tensor.storage.buffer import is_pjrt
from torch_pjrt.tensor.storage.mixed_devices import OfSeveralDevices, refuse_mixed
from torch_pjrt.tensor.storage.transfer import upload
from torch_pjrt.tensor.storage.view import value_and_spec


class BoundCall:
    """A bound call.

    given     every argument of the functional overload by name, as the caller gave it.
    inputs, specs    the tensors' values and specs, in the order of their slots.
    numbers   the Python numbers that may become inputs, in the order of their slots.
    args, kwargs    the template for the rule.
    key       all that decides the signature.
    source    the arguments of the operator itself, as it was called.
    lists     its lists of tensors by name; None where one of them is not a `WholeList`.
    """

    __slots__ = (
        "args",
        "given",
        "inputs",
        "key",
        "kwargs",
        "lists",
        "numbers",
        "plan",
        "source",
        "specs",
        "static",
    )

    def __init__(
        self,
        plan: OverloadPlan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        static: frozenset[str] | None,
    ) -> None:
        """`static` names the numbers that must be constants; None makes all of them so."""
        self.plan = plan
        self.source = args, kwargs
        self.static = static
        self.inputs: list[Value] = []
        self.specs: list[TensorSpec] = []
        self.numbers: list[int | float] = []
        self.given: dict[str, Any] = {}
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.lists: dict[str, WholeList] | None = {}
        parts: list[Any] = []
        positional = 0
        for argument in plan.arguments:
            if argument.name in kwargs:
                given = kwargs[argument.name]
            elif not argument.keyword_only and positional < len(args):
                given = args[positional]
            else:
                given = argument.default
            if not argument.keyword_only:
                positional += 1
            self.given[argument.name] = given
            if argument.kind is Kind.DROPPED:
                if argument.name == "memory_format":
                    parts.append(given)
                continue
            slotted, part = self._slotted(argument, given)
            parts.append(part)
            if argument.keyword_only:
                self.kwargs[argument.name] = slotted
            else:
                self.args = (*self.args, slotted)
        self.key = (plan.op, tuple(self.specs), tuple(parts), torch.get_default_dtype())

    def _slotted(self, argument: Argument, given: Any) -> tuple[Any, Any]:
        """What stands for it in the template, and in the key."""
        if given is None:
            return None, None
        match argument.kind:
            case Kind.TENSOR:
                slotted = self._tensor(argument, given)
            case Kind.TENSORS:
                return self._tensors(argument, given)
            case Kind.NUMBER:
                slotted = self._number(argument, given)
            case Kind.NUMBERS:
                return self._numbers(argument, given)
            case _:
                slotted = given
        return slotted, hashable(slotted)

    def _tensors(self, argument: Argument, given: Any) -> tuple[Any, Any]:
        found = whole_list(given)
        if found is None:
            self.lists = None
            slotted = tuple([None if t is None else self._tensor(argument, t) for t in given])
            return slotted, slotted
        if self.lists is not None:
            self.lists[argument.name] = found
        first, n = len(self.inputs), len(found.values)
        self.inputs += found.values
        self.specs += found.specs
        return slots(first, n), ("tensors", first, n)

    def _numbers(self, argument: Argument, given: Any) -> tuple[Any, Any]:
        kinds = {n.__class__ for n in given}
        is_static = self.static is None or argument.name in self.static
        if is_static or len(kinds) != 1 or not kinds <= {int, float}:
            slotted = [self._number(argument, n) for n in given]
            return slotted, hashable(slotted)
        [kind] = kinds
        first, n = len(self.numbers), len(given)
        self.numbers += given
        return list(number_slots(first, n, kind)), ("numbers", first, n, kind)

    def _tensor(self, argument: Argument, given: Any) -> Any:
        if not isinstance(given, torch.Tensor):
            return self._number(argument, given)
        if given.device.type == "pjrt":
            value, spec = value_and_spec(given)
        else:
            if argument.kind is Kind.TENSORS and self.plan.on_lists and self._is_longer():
                raise OfSeveralDevices
            refuse_mixed(self.plan.op, *self.source)
            value = upload(given)
            spec = value.spec
        self.specs.append(spec)
        self.inputs.append(value)
        return Slot(len(self.inputs) - 1)

    def _is_longer(self) -> bool:
        """Whether the lists of an operator on lists have several elements."""
        args, kwargs = self.source
        return any(isinstance(x, (list, tuple)) and len(x) > 1 for x in (*args, *kwargs.values()))

    def _number(self, argument: Argument, given: Any) -> Any:
        kind = given.__class__
        if self.static is None or argument.name in self.static or kind not in (int, float):
            return given
        self.numbers.append(given)
        return NumberSlot(len(self.numbers) - 1, kind)


def mapped(
    x: Any, on_tensor: Callable[[torch.Tensor], Any], is_one: Callable[[object], bool] = is_pjrt
) -> Any:
    """`x` with each tensor in it (in lists and dicts too) replaced: of the device, or which `is_one`."""
    if is_one(x):
        return on_tensor(x)
    if isinstance(x, (list, tuple)):
        return [mapped(i, on_tensor, is_one) for i in x]
    if isinstance(x, dict):
        return {k: mapped(v, on_tensor, is_one) for k, v in x.items()}
    return x


def is_tensor(x: object) -> bool:
    return isinstance(x, torch.Tensor)
