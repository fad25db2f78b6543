"""Operators over lists of tensors, as `_foreach_*` and `_fused_*` are, seen as copies of one operator.

A part of such a node is the same operator over some positions of its lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from torch_pjrt.graph.graph import Node, Number
from torch_pjrt.graph.signature import NumberSlot, Slot, intern

_PREFIXES = ("_foreach_", "_fused_")


def length_of_lists(node: Node) -> int:
    """How many tensors each of the node's lists has; 0 if it is no operator over lists."""
    signature = node.signature
    if not getattr(signature.op, "__name__", "").startswith(_PREFIXES):
        return 0
    if signature.random or signature.expansion is not None or any(signature.dropped):
        return 0
    arguments = (*signature.args, *signature.kwargs.values())
    lengths = {len(a) for a in arguments if isinstance(a, (list, tuple)) and a}
    if len(lengths) != 1:
        return 0
    (length,) = lengths
    return length if len(signature.outs) % length == 0 else 0


def lists_of(node: Node) -> list[tuple[int, ...]]:
    """The lists of tensors that the node takes, as values."""
    arguments = (*node.signature.args, *node.signature.kwargs.values())
    return [
        tuple(node.inputs[slot.index] for slot in a)
        for a in arguments
        if isinstance(a, (list, tuple)) and a and isinstance(a[0], Slot)
    ]


def _some(argument: Any, positions: Sequence[int], own: Callable[[Any], Any]) -> Any:
    if isinstance(argument, (list, tuple)):
        some = [argument[position] for position in positions] if argument else []
        return type(argument)(_some(a, positions, own) for a in some)
    return own(argument)


def part(node: Node, positions: Sequence[int]) -> Node:
    """The node's operator over these positions of its lists."""
    signature = node.signature
    n = length_of_lists(node)
    inputs: list[int] = []
    numbers: list[Number] = []

    def own(argument: Any) -> Any:
        if isinstance(argument, Slot):
            inputs.append(argument.index)
            return Slot(len(inputs) - 1)
        if isinstance(argument, NumberSlot):
            numbers.append(node.numbers[argument.index])
            return NumberSlot(len(numbers) - 1, argument.kind)
        return argument

    args = tuple(_some(argument, positions, own) for argument in signature.args)
    kwargs = {name: _some(argument, positions, own) for name, argument in signature.kwargs.items()}
    columns = range(0, len(signature.outs), n)
    results = list(chain.from_iterable([c + position for position in positions] for c in columns))
    smaller = intern(
        signature.op,
        args,
        kwargs,
        tuple(signature.specs[i] for i in inputs),
        tuple(signature.outs[i] for i in results),
        tuple(number.kind for number in numbers),
        returns="list" if signature.returns == "tensor" else signature.returns,
        default_dtype=signature.default_dtype,
    )
    return Node(
        smaller,
        tuple(node.inputs[i] for i in inputs),
        tuple(node.outputs[i] for i in results),
        tuple(numbers),
        line=node.line,
    )
