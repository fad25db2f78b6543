"""Stacks in a graph: values of one shape as one, and the two nodes that make them and take them apart.

pjrt.stack([a, b, c])           values of one shape as one, along a new first dim
pjrt.elements(stack, [0, 2])    some of them again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_pjrt.graph.graph import Node
from torch_pjrt.graph.signature import InternalOp, Slot, intern
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, stack_of

STACK = InternalOp("pjrt.stack")
ELEMENTS = InternalOp("pjrt.elements")


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of one stack: from `start` on, `length` of them, each `step` further on (or back).

    A piece with a `stack` of False is a value that is not stacked yet.
    """

    value: int
    stack: bool = False
    start: int = 0
    length: int = 1
    step: int = 1


def pieces_of(values: Sequence[int], where: Mapping[int, tuple[int, int]]) -> list[Piece]:
    """The values as parts of the stacks that hold them; `where` says which stack, and where in it."""
    pieces: list[Piece] = []
    position = 0
    while position < len(values):
        if values[position] not in where:
            pieces.append(Piece(values[position]))
            position += 1
            continue
        stack, start = where[values[position]]
        length, step = _run(values[position:], where)
        pieces.append(Piece(stack, True, start, length, step))
        position += length
    return pieces


def _run(values: Sequence[int], where: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
    """How many of the values, from the first on, lie evenly spaced in its stack, and how far apart.

    Two that are not neighbours are no run yet.
    """
    stack, last = where[values[0]]
    length, step = 1, 1
    for value in values[1:]:
        of_next, index = where.get(value, (None, 0))
        if of_next != stack or index == last or (length > 1 and index - last != step):
            break
        step, last = index - last, index
        length += 1
    return (length, step) if length > 2 or step in (1, -1) else (1, 1)


def stack_node(pieces: Sequence[Piece], specs: Sequence[TensorSpec], out: int) -> Node:
    """The node that stacks these pieces, one after another; `specs` are those of the pieces' values."""
    n = sum(piece.length for piece in pieces)
    first = specs[0]
    element = contiguous_spec(first.shape[1:], first.dtype) if pieces[0].stack else first
    plan = tuple((p.start, p.length, p.step) if p.stack else None for p in pieces)
    slots = tuple(map(Slot, range(len(pieces))))
    args = (slots,) if not any(plan) else (slots, plan)
    signature = intern(STACK, args, {}, tuple(specs), (stack_of(element, n),))
    return Node(signature, tuple(p.value for p in pieces), (out,))


def elements_node(
    stack: int, stacked: TensorSpec, spec: TensorSpec, elements: Sequence[tuple[int, int]]
) -> Node:
    """The node that takes elements out of a stack, each given as its index and the value's name."""
    indices, outputs = zip(*elements, strict=True)
    args = (Slot(0), indices)
    signature = intern(ELEMENTS, args, {}, (stacked,), (spec,) * len(indices), returns="tuple")
    return Node(signature, (stack,), outputs)
