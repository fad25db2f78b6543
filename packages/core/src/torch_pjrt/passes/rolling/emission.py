"""A graph with its repetitions written as loops.

Nodes outside of loops stay as they are. A value of a loop that somebody outside reads is an element of a
stack; another loop that reads all of them takes the stack itself, and runs from its end where the order is
the opposite one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from torch_pjrt.graph.graph import Draw, Graph, Node, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import READ
from torch_pjrt.graph.stacks import elements_node, pieces_of, stack_node
from torch_pjrt.passes.merge_equal import number_key
from torch_pjrt.passes.rolling.lists import length_of_lists, lists_of, part
from torch_pjrt.passes.rolling.wiring import (
    Carried,
    Const,
    Inner,
    Inputs,
    Source,
    Wiring,
    Xs,
)


def with_loops(graph: Graph, wirings: Sequence[Wiring], inputs: Inputs, fewest: int) -> Graph:
    """`graph` with each of `wirings`, which do not overlap and are in order, as a loop.

    In operators over lists, `fewest` or more positions whose tensors are stacked become one.
    """
    emitter = _Emitter(graph, fewest)
    position = 0
    for wiring in wirings:
        emitter.keep(graph.nodes[position : wiring.start])
        wanted = inputs.read_outside(wiring.start, wiring.stop)
        emitter.loop(_iterations_of(graph, wiring), wanted)
        position = wiring.stop
    emitter.keep(graph.nodes[position:])
    emitter.make(graph.outputs)
    return replace(graph, nodes=tuple(emitter.nodes))


class _Iterations:
    """The nodes of a repetition, iteration by iteration, and what they read."""

    def __init__(self, iterations: Sequence[Sequence[Node]], sources: Sequence[Source]) -> None:
        self.nodes = iterations
        self.sources = sources
        # The body's name of the first result of each node.
        self.first = [0, *accumulate(len(node.outputs) for node in iterations[0])]

    def __len__(self) -> int:
        return len(self.nodes)

    def values(self, node: int, result: int) -> list[int]:
        """A result by iterations."""
        return [iteration[node].outputs[result] for iteration in self.nodes]


def _iterations_of(graph: Graph, wiring: Wiring) -> _Iterations:
    nodes, period = graph.nodes[wiring.start : wiring.stop], wiring.period
    return _Iterations(
        [nodes[i : i + period] for i in range(0, len(nodes), period)], wiring.sources
    )


_FILLS = frozenset(("zeros_like", "ones_like", "full_like", "empty_like"))


def _is_light(nodes: Sequence[Node]) -> bool:
    """Whether these are views, fills and pointwise operators: many at once are as good as one at a time."""
    return all(
        node.op is READ
        or (
            not node.signature.random
            and isinstance(node.op, torch._ops.OpOverload)
            and (torch.Tag.pointwise in node.op.tags or node.op._opname in _FILLS)
        )
        for node in nodes
    )


def _copies(nodes: Sequence[Node]) -> _Iterations:
    """Nodes of one signature, which do not read each other, as iterations of one node."""
    columns = zip(*(node.inputs for node in nodes), strict=True)
    sources = [Const(c[0]) if len(set(c)) == 1 else Xs(c) for c in columns]
    return _Iterations([[node] for node in nodes], sources)


@dataclass(slots=True)
class _Queue:
    """A value that is carried on: `inputs` are its positions among the body's inputs, the oldest first."""

    node: int
    result: int
    inputs: list[int]
    first: tuple[int, ...]


class _Emitter:
    def __init__(self, graph: Graph, fewest: int) -> None:
        self.nodes: list[Node] = []
        self._fewest = fewest
        self._specs = graph.specs()
        self._fresh = 1 + max((v for n in graph.nodes for v in n.outputs), default=-1)
        self._elements: dict[int, tuple[int, int]] = {}  # of which stack, which
        self._there: set[int] = set()  # those of them that have been taken out
        self._stacks: dict[tuple[int, ...], int] = {}
        self._stacked_too: dict[
            int, tuple[int, int]
        ] = {}  # as `_elements`, of what is there besides
        self._rows: dict[int, list[list[int]]] = {}  # by the length of lists
        self._columns: dict[int, list[list[tuple[int, ...]]]] = {}  # the lists of nodes, likewise
        for node in graph.nodes:
            n = length_of_lists(node)
            if n >= fewest:
                self._columns.setdefault(n, []).append(lists_of(node))

    def keep(self, nodes: Sequence[Node]) -> None:
        """Nodes that are in no loop."""
        for node in nodes:
            n = length_of_lists(node)
            if n < self._fewest or not self._stacks:
                self.make(node.inputs)
                self.nodes.append(node)
            else:
                self._keep_lists(node, n)

    def _keep_lists(self, node: Node, n: int) -> None:
        """A node over lists: what is stacked goes through as stacks, the rest as it is."""
        if n not in self._rows:
            self._rows[n] = self._rows_of(n)
        rest = set(range(n))
        for row in self._rows[n]:
            groups: dict[int, list[tuple[int, Node]]] = {}
            for position in row:
                one = part(node, [position])
                groups.setdefault(one.signature.number, []).append((position, one))
            for group in groups.values():
                if len(group) >= self._fewest:
                    rest.difference_update(position for position, _ in group)
                    ones = [one for _, one in group]
                    wanted = frozenset(v for one in ones for v in one.outputs)
                    self.loop(_copies(ones), wanted, vectorized=True)
        if rest:
            node = part(node, sorted(rest)) if len(rest) < n else node
            self.make(node.inputs)
            self.nodes.append(node)

    def _rows_of(self, n: int) -> list[list[int]]:
        """The positions in lists of this length that belong together: what is there is in the same stacks.

        All nodes over lists of this length are asked, so that they agree, as those of one optimizer do.
        """
        stacks: list[dict[int, None]] = [{} for _ in range(n)]
        index: list[int] = [0] * n
        for columns in self._columns.get(n, ()):
            for column in columns:
                for position, value in enumerate(column):
                    where = self._where(value)
                    if where is not None:
                        stacks[position][where[0]] = None
                        index[position] = where[1]
        rows: dict[tuple[int, ...], list[int]] = {}
        for position in sorted(range(n), key=lambda position: (index[position], position)):
            if stacks[position]:
                rows.setdefault(tuple(stacks[position]), []).append(position)
        return list(rows.values())

    def _where(self, value: int) -> tuple[int, int] | None:
        """A stack that holds the value, and its index there."""
        return self._elements.get(value) or self._stacked_too.get(value)

    def make(self, values: Sequence[int]) -> None:
        """Take these out of their stacks, if they are in one and have not been taken."""
        missing: dict[int, list[tuple[int, int]]] = {}
        for value in values:
            if value in self._elements and value not in self._there:
                stack, index = self._elements[value]
                missing.setdefault(stack, []).append((index, value))
                self._there.add(value)
        for stack, elements in missing.items():
            spec = self._specs[elements[0][1]]
            self.nodes.append(elements_node(stack, self._specs[stack], spec, elements))

    def loop(
        self, iterations: _Iterations, wanted: frozenset[int], *, vectorized: bool = False
    ) -> None:
        """The node that runs these iterations; `wanted` are values that are read outside of them."""
        queues = _queues(iterations)
        same = list(dict.fromkeys(s.value for s in iterations.sources if isinstance(s, Const)))
        each = list(dict.fromkeys(s.values for s in iterations.sources if isinstance(s, Xs)))
        reverse = sum(map(self._direction, each)) < 0
        each_way = -1 if reverse else 1
        stacks = [self._stacked(values[::each_way]) for values in each]
        carried = [value for queue in queues for value in queue.first]
        self.make(carried)
        self.make(same)

        vectorized = vectorized or (not carried and bool(stacks) and _is_light(iterations.nodes[0]))

        first_stack = len(carried) + len(same)
        names: dict[object, int] = {s: -1 - i for i, s in enumerate(same, len(carried))}
        names |= {values: -1 - i for i, values in enumerate(each, first_stack)}
        carry_names = _carry_names(queues)

        def name(source: object) -> int:
            if isinstance(source, Inner):
                return iterations.first[source.node] + source.result
            if isinstance(source, Carried):
                return carry_names[source.node, source.result, source.first]
            return names[source.value if isinstance(source, Const) else source.values]  # type: ignore[union-attr]

        body_nodes, draws, numbers = _body(iterations, [name(s) for s in iterations.sources])
        following = [
            -1 - following if following is not None else iterations.first[q.node] + q.result
            for q in queues
            for following in [*q.inputs[1:], None]
        ]
        finals = self._finals(iterations, queues)
        collected = _collected(iterations, queues, wanted, frozenset(finals))
        body = Graph(
            tuple(
                [self._specs[v] for v in (*carried, *same)]
                + [self._specs[values[0]] for values in each]
            ),
            body_nodes,
            (*following, *(name for name, _ in collected)),
        )
        op = LoopOp(
            body, len(iterations), len(carried), len(stacks), reverse, vectorized, draws, numbers
        )
        collections = [self._new() for _ in collected]
        outputs = (*finals, *collections)
        signature = op.signature()
        self._specs.update(zip(outputs, signature.outs, strict=True))
        line = iterations.nodes[0][0].line
        self.nodes.append(Node(signature, (*carried, *same, *stacks), outputs, line=line))
        for (_, values), stack in zip(collected, collections, strict=True):
            in_order = values[::each_way]
            self._stacks[in_order] = stack
            for i, value in enumerate(in_order):
                if value in carried and value not in self._elements:
                    self._there.add(value)
                self._elements.setdefault(value, (stack, i))
        self._there.update(finals)

    def _finals(self, iterations: _Iterations, queues: Sequence[_Queue]) -> list[int]:
        """Names of what is carried out of the last iteration: those of the last iterations' results."""
        names: list[int] = []
        for queue in queues:
            values = iterations.values(queue.node, queue.result)
            for value in values[len(values) - len(queue.inputs) :]:
                names.append(value if value not in names else self._new())
        return names

    def _new(self) -> int:
        self._fresh += 1
        return self._fresh - 1

    def _direction(self, values: tuple[int, ...]) -> int:
        """1 if a stack holds these in this order, -1 if in the opposite one, 0 if neither."""
        if values in self._stacks:
            return 1
        if values[::-1] in self._stacks:
            return -1
        return sum(p.step * p.length for p in pieces_of(values, self._elements) if p.length > 1)

    def _stacked(self, values: tuple[int, ...]) -> int:
        """The stack of these values: one that is there, or a new one made of what is there."""
        known = self._stacks.get(values)
        if known is not None:
            return known
        pieces = pieces_of(values, self._elements)
        stack = self._stacks[values] = self._new()
        specs = [self._specs[piece.value] for piece in pieces]
        node = stack_node(pieces, specs, out=stack)
        self.nodes.append(node)
        self._specs[stack] = node.signature.outs[0]
        for i, value in enumerate(values):
            self._stacked_too.setdefault(value, (stack, i))
        return stack


def _queues(iterations: _Iterations) -> list[_Queue]:
    """One for each value that is carried; one that is read sooner may be the end of one read later."""
    carried = {(s.node, s.result, s.first) for s in iterations.sources if isinstance(s, Carried)}
    queues: list[_Queue] = []
    for node, result, first in sorted(carried, key=lambda c: (-len(c[2]), c)):
        if not any(
            (q.node, q.result) == (node, result) and q.first[-len(first) :] == first for q in queues
        ):
            begin = sum(len(q.inputs) for q in queues)
            queues.append(_Queue(node, result, list(range(begin, begin + len(first))), first))
    return queues


def _carry_names(queues: Sequence[_Queue]) -> dict[tuple[int, int, tuple[int, ...]], int]:
    """The body's names of carried values, by node, result and first values."""
    names: dict[tuple[int, int, tuple[int, ...]], int] = {}
    for queue in reversed(queues):
        for i, position in enumerate(queue.inputs):
            names[queue.node, queue.result, queue.first[i:]] = -1 - position
    return names


def _collected(
    iterations: _Iterations,
    queues: Sequence[_Queue],
    wanted: frozenset[int],
    finals: frozenset[int],
) -> list[tuple[int, tuple[int, ...]]]:
    """What the body gives for stacks: its name there, and the values by iterations.

    Of what is carried on, and has a first value that is wanted too, that which each iteration takes is
    collected and not that which it gives: a backward reads the inputs of the layers.
    """
    taken = {
        (q.node, q.result): q for q in queues if len(q.first) == 1 and wanted.issuperset(q.first)
    }
    collected: list[tuple[int, tuple[int, ...]]] = []
    for node, first in enumerate(iterations.nodes[0]):
        for result in range(len(first.outputs)):
            values = iterations.values(node, result)
            if wanted.isdisjoint(set(values).difference(finals)):
                continue
            queue = taken.get((node, result))
            if queue is not None and values[-1] in finals:
                collected.append((-1 - queue.inputs[0], (*queue.first, *values[:-1])))
            else:
                collected.append((iterations.first[node] + result, tuple(values)))
    return collected


def _body(
    iterations: _Iterations, names: Sequence[int]
) -> tuple[tuple[Node, ...], tuple[tuple[Draw, ...], ...], tuple[tuple[Number, ...], ...]]:
    """The first iteration's nodes under the body's names; the draws and numbers that differ by iteration."""
    nodes: list[Node] = []
    draws: list[tuple[Draw, ...]] = []
    numbers: list[tuple[Number, ...]] = []
    position = 0
    for index, (node, *others) in enumerate(zip(*iterations.nodes, strict=True)):
        inputs = tuple(names[position : position + len(node.inputs)])
        position += len(node.inputs)
        outputs = tuple(range(iterations.first[index], iterations.first[index + 1]))
        draw = node.draw
        if draw is not None:
            draw = Draw(-1, len(draws))
            draws.append(tuple(n.draw for n in (node, *others) if n.draw is not None))
        own: list[Number] = []
        for each in zip(*(n.numbers for n in (node, *others)), strict=True):
            if len({number_key(number) for number in each}) == 1:
                own.append(each[0])
            else:
                own.append(Number(each[0].kind, -1 - len(numbers)))
                numbers.append(each)
        nodes.append(replace(node, inputs=inputs, outputs=outputs, numbers=tuple(own), draw=draw))
    return tuple(nodes), tuple(draws), tuple(numbers)
