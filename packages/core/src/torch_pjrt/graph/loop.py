"""A loop in a graph: a body that runs a number of iterations.

    pjrt.loop(carried..., same..., stacked...)    the body's results: what it carries on, then stacks

The body is a graph like any other. Its inputs are those of the loop: what an iteration gets from the one
before, what is the same in all iterations, and the iteration's element of each stack. Its outputs are what
the next iteration gets, and what the loop collects into stacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.signature import Signature, Slot
from torch_pjrt.graph.tensor_spec import TensorSpec, stack_of

if TYPE_CHECKING:
    from torch_pjrt.graph.graph import Draw, Graph, Number


@dataclass(frozen=True, slots=True, eq=False)
class LoopOp:
    """The operator of one loop.

    body        what an iteration does. In it the draw (-1, k) stands for `draws[k]`, and the number of index
                -1 - k that is no constant for `numbers[k]`.
    trip_count  how often it runs.
    n_carried   so many of the first inputs, and outputs, go from iteration to iteration.
    n_xs        of so many of the last inputs each iteration gets one element.
    reverse     the first iteration takes and gives the last element of each stack, and so on.
    vectorized  nothing is carried, and all iterations are computed at once.
    draws, numbers    what differs from iteration to iteration, for each iteration in order.

        >>> from torch_pjrt.testing.graphs import parse
        >>> body = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.sin.default(i0)
        ...     return v0''')
        >>> LoopOp(body, trip_count=4, n_carried=1, n_xs=0).described()
        '4 iterations: 1 carried, 0 consts, 0 xs'
    """

    body: Graph
    trip_count: int
    n_carried: int
    n_xs: int
    reverse: bool = False
    vectorized: bool = False
    draws: tuple[tuple[Draw, ...], ...] = ()
    numbers: tuple[tuple[Number, ...], ...] = ()

    def __str__(self) -> str:
        return "pjrt.loop"

    def described(self) -> str:
        """What it is, in a few words."""
        words = f"{self.trip_count} iterations"
        words += ", from the last element to the first" if self.reverse else ""
        words += ", all at once" if self.vectorized else ""
        return f"{words}: {self.n_carried} carried, {self.n_consts} consts, {self.n_xs} xs"

    @property
    def n_consts(self) -> int:
        """How many inputs are the same in all iterations."""
        return len(self.body.inputs) - self.n_carried - self.n_xs

    def specs(self) -> tuple[TensorSpec, ...]:
        """What the loop's inputs look like."""
        first = len(self.body.inputs) - self.n_xs
        return (
            *self.body.inputs[:first],
            *(stack_of(spec, self.trip_count) for spec in self.body.inputs[first:]),
        )

    def outs(self) -> tuple[TensorSpec, ...]:
        """What its results look like."""
        specs = self.body.specs()
        outs = [specs[value] for value in self.body.outputs]
        return (
            *self.body.inputs[: self.n_carried],
            *(stack_of(spec, self.trip_count) for spec in outs[self.n_carried :]),
        )

    def signature(self) -> Signature:
        """That of the one node which runs it. It is not interned: each loop is an operator of its own."""
        specs = self.specs()
        slots = tuple(map(Slot, range(len(specs))))
        return Signature(-1, self, slots, {}, specs, self.outs(), (), False, "tuple")

    def verify(self, after: str) -> None:
        """`InvalidGraph` if the body is broken, or does not carry on what it takes."""
        self.body.verify(after)
        specs = self.body.specs()
        for node in self.body.nodes:
            for value, spec in zip(node.inputs, node.signature.specs, strict=True):
                _same(f"`{node.op}` in a loop", specs[value], spec, after)
        for taken, value in zip(
            self.body.inputs[: self.n_carried], self.body.outputs, strict=False
        ):
            _same("the next iteration of a loop", specs[value], taken, after)
        if any(
            len(each) != self.trip_count for table in (self.draws, self.numbers) for each in table
        ) or self.n_carried > len(self.body.outputs):
            raise InvalidGraph(
                "A loop has draws, numbers or outputs for fewer iterations than it runs.",
                saw=f"the graph that `{after}` returned",
                expected=f"{self.trip_count} of each",
            )


def _same(where: str, saw: TensorSpec, expected: TensorSpec, after: str) -> None:
    if (saw.shape, saw.dtype) != (expected.shape, expected.dtype):
        raise InvalidGraph(
            f"{where[0].upper()}{where[1:]} is fed something else than it takes.",
            saw=f"{saw} in the graph that `{after}` returned",
            expected=str(expected),
        )


def loops_of(graph: Graph) -> Iterator[LoopOp]:
    """The `LoopOp`s of a graph, in order."""
    for node in graph.nodes:
        if isinstance(node.op, LoopOp):
            yield node.op
