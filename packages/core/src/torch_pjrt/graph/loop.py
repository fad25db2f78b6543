"""A loop in a graph: a body that runs a number of turns, and the two nodes that go with it.

    pjrt.loop(carried..., same..., stacked...)    the body's results: what it carries on, then stacks
    pjrt.stack([a, b, c])                         values of one shape as one, along a new first dim
    pjrt.elements(stack, [0, 2])                  some of them again

The body is a graph like any other. Its inputs are those of the loop: what a turn gets from the one
before, what is the same in all turns, and the turn's element of each stack. Its outputs are what the next
turn gets, and what the loop collects into stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.face import Face, contiguous_face
from torch_pjrt.graph.signature import InternalOp, Signature, Slot, intern

if TYPE_CHECKING:
    from torch_pjrt.graph.graph import Draw, Graph, Node, Number

STACK = InternalOp("pjrt.stack")
ELEMENTS = InternalOp("pjrt.elements")


@dataclass(frozen=True, slots=True, eq=False)
class LoopOp:
    """The operator of one loop.

    body        what a turn does. In it the draw (-1, k) stands for `draws[k]`, and the number of index
                -1 - k that is no constant for `numbers[k]`.
    turns       how often it runs.
    n_carried   so many of the first inputs, and outputs, go from turn to turn.
    n_stacked   of so many of the last inputs each turn gets one element.
    reverse     the first turn takes and gives the last element of each stack, and so on.
    vectorized  nothing is carried, and all turns are computed at once.
    draws, numbers    what differs from turn to turn, for each turn in order.
    """

    body: Graph
    turns: int
    n_carried: int
    n_stacked: int
    reverse: bool = False
    vectorized: bool = False
    draws: tuple[tuple[Draw, ...], ...] = ()
    numbers: tuple[tuple[Number, ...], ...] = ()

    def __str__(self) -> str:
        return "pjrt.loop"

    def told(self) -> str:
        """What it is, in a few words."""
        turns = f"{self.turns} turns"
        turns += ", from the last element to the first" if self.reverse else ""
        turns += ", all at once" if self.vectorized else ""
        return (
            f"{turns}: {self.n_carried} carried, {self.n_same} the same, {self.n_stacked} stacked"
        )

    @property
    def n_same(self) -> int:
        """How many inputs are the same in all turns."""
        return len(self.body.inputs) - self.n_carried - self.n_stacked

    def faces(self) -> tuple[Face, ...]:
        """What the loop's inputs look like."""
        first = len(self.body.inputs) - self.n_stacked
        return (
            *self.body.inputs[:first],
            *(stack_of(face, self.turns) for face in self.body.inputs[first:]),
        )

    def outs(self) -> tuple[Face, ...]:
        """What its results look like."""
        faces = self.body.faces()
        outs = [faces[value] for value in self.body.outputs]
        return (
            *self.body.inputs[: self.n_carried],
            *(stack_of(face, self.turns) for face in outs[self.n_carried :]),
        )

    def signature(self) -> Signature:
        """That of the one node which runs it. It is not interned: each loop is an operator of its own."""
        faces = self.faces()
        slots = tuple(map(Slot, range(len(faces))))
        return Signature(-1, self, slots, {}, faces, self.outs(), (), False, "tuple")

    def verify(self, after: str) -> None:
        """`InvalidGraph` if the body is broken, or does not carry on what it takes."""
        self.body.verify(after)
        faces = self.body.faces()
        for node in self.body.nodes:
            for value, face in zip(node.inputs, node.signature.faces, strict=True):
                _same(f"`{node.op}` in a loop", faces[value], face, after)
        for taken, value in zip(
            self.body.inputs[: self.n_carried], self.body.outputs, strict=False
        ):
            _same("the next turn of a loop", faces[value], taken, after)
        if any(
            len(each) != self.turns for table in (self.draws, self.numbers) for each in table
        ) or self.n_carried > len(self.body.outputs):
            raise InvalidGraph(
                "A loop has draws, numbers or outputs for fewer turns than it runs.",
                saw=f"the graph that `{after}` returned",
                expected=f"{self.turns} of each",
            )


def _same(where: str, saw: Face, expected: Face, after: str) -> None:
    if (saw.shape, saw.dtype) != (expected.shape, expected.dtype):
        raise InvalidGraph(
            f"{where[0].upper()}{where[1:]} is fed something else than it takes.",
            saw=f"{saw} in the graph that `{after}` returned",
            expected=str(expected),
        )


def stack_of(face: Face, n: int) -> Face:
    """The face of `n` values that look like `face`, stacked."""
    return contiguous_face((n, *face.shape), face.dtype)


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
    place = 0
    while place < len(values):
        if values[place] not in where:
            pieces.append(Piece(values[place]))
            place += 1
            continue
        stack, start = where[values[place]]
        length, step = _run(values[place:], where)
        pieces.append(Piece(stack, True, start, length, step))
        place += length
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


def stack_node(pieces: Sequence[Piece], faces: Sequence[Face], out: int) -> Node:
    """The node that stacks these pieces, one after another; `faces` are those of the pieces' values."""
    from torch_pjrt.graph.graph import Node

    n = sum(piece.length for piece in pieces)
    first = faces[0]
    element = contiguous_face(first.shape[1:], first.dtype) if pieces[0].stack else first
    plan = tuple((p.start, p.length, p.step) if p.stack else None for p in pieces)
    slots = tuple(map(Slot, range(len(pieces))))
    args = (slots,) if not any(plan) else (slots, plan)
    signature = intern(STACK, args, {}, tuple(faces), (stack_of(element, n),))
    return Node(signature, tuple(p.value for p in pieces), (out,))


def elements_node(
    stack: int, stacked: Face, face: Face, elements: Sequence[tuple[int, int]]
) -> Node:
    """The node that takes elements out of a stack, each given as its index and the value's name."""
    from torch_pjrt.graph.graph import Node

    indices, outputs = zip(*elements, strict=True)
    args = (Slot(0), indices)
    signature = intern(ELEMENTS, args, {}, (stacked,), (face,) * len(indices), returns="tuple")
    return Node(signature, (stack,), outputs)


def loops_of(graph: Graph) -> Iterator[LoopOp]:
    """The `LoopOp`s of a graph, in order."""
    for node in graph.nodes:
        if isinstance(node.op, LoopOp):
            yield node.op
