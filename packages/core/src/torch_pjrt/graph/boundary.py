"""The boundary of a program: which of its inputs go in as one stack, and which outputs come out as one.

A loop over layers reads their weights from stacks, and gives new ones as stacks. Taken apart and put
together in each step they would cost more than the loop saves; so what a graph stacks anyway goes through
the boundary as it is, and stays a stack on the device from one program to the next
(`client/stack_elements.py`).

before  v0 = pjrt.stack(i0, i1, i2)             after  v2 = loop(i0)
        v1 = loop(v0)                                  return v2        of i0, i1, i2 as one
        v2, v3, v4 = pjrt.elements(v1)                                  and o0, o1, o2 as one
        return v2, v3, v4
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count
from operator import itemgetter
from typing import TypeVar

from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.graph.stacks import ELEMENTS, STACK, Piece, elements_node, pieces_of, stack_node
from torch_pjrt.graph.tensor_spec import TensorSpec, stack_of

T = TypeVar("T")

# One array of a program: a single input or output by its position, or those that are the elements of a stack.
Position = int | tuple[int, ...]


@dataclass(frozen=True)
class Boundary:
    """What a compiled program takes and gives, by their positions among the recorded inputs and outputs.

    inputs   each array that it takes.
    outputs  each array that it gives.
    donated  the positions in `inputs` of those whose memory it takes.
    """

    inputs: tuple[Position, ...]
    outputs: tuple[Position, ...]
    donated: tuple[int, ...]

    @cached_property
    def is_plain(self) -> bool:
        """Whether each array is one input or output, and in the same order."""
        return self.inputs == tuple(range(len(self.inputs))) and (
            self.outputs == tuple(range(len(self.outputs)))
        )

    @cached_property
    def in_order(self) -> Callable[[list[T]], Sequence[T]]:
        """Of the arrays that it gives, those of stacks one by one, the recorded outputs in their order."""
        flat = list(chain.from_iterable([p] if isinstance(p, int) else p for p in self.outputs))
        if len(flat) < 2:
            return tuple
        return itemgetter(*sorted(range(len(flat)), key=flat.__getitem__))

    @cached_property
    def taken(self) -> frozenset[int]:
        """`donated`, as a set."""
        return frozenset(self.donated)


def with_stacks(graph: Graph, aliased: Mapping[int, int]) -> tuple[Graph, Boundary]:
    """`graph` with its stacks of inputs as inputs and its stacks of outputs as outputs, and how they go.

    `aliased` says for each input that is donated, by its position, the position of the output which takes its
    memory. What is donated as a stack is given as a stack in the same order, so that its memory serves.
    """
    taken = _stacks_of_inputs(graph, aliased)
    given = _stacks_of_outputs(graph, taken, aliased)
    if not taken and not given:
        positions = tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs)))
        return graph, Boundary(*positions, tuple(sorted(aliased)))
    graph, inputs = _fed(graph, taken)
    outputs: list[Position] = []
    donated: list[int] = []
    for number, position in enumerate(inputs):
        alias: Position | None
        if isinstance(position, int):
            alias = aliased.get(position)
        else:
            of_each = tuple(aliased.get(i, -1) for i in position)
            alias = of_each if of_each in given else None
        if alias is not None:
            donated.append(number)
            outputs.append(alias)
    inherited = frozenset(outputs)
    outputs += [position for position in given if position not in inherited]
    through = {i for position in outputs for i in _positions(position)}
    outputs += [i for i in range(len(graph.outputs)) if i not in through]
    return _with_outputs(graph, outputs), Boundary(tuple(inputs), tuple(outputs), tuple(donated))


def _positions(position: Position) -> tuple[int, ...]:
    return (position,) if isinstance(position, int) else position


def _fresh_names(graph: Graph) -> Iterator[int]:
    """Names that no value of the graph has."""
    return count(1 + max((v for node in graph.nodes for v in node.outputs), default=-1))


def _stacks_of_inputs(graph: Graph, aliased: Mapping[int, int]) -> list[tuple[int, ...]]:
    """What the graph stacks of its inputs alone, by positions; the longest first, each input once.

    Those that have an aliased output are apart from those that have none, so that theirs are the next
    program's stack.
    """
    stacks = [
        tuple(-1 - value for value in node.inputs)
        for node in graph.nodes
        if node.op is STACK
        and len(node.signature.args) == 1
        and max(node.inputs) < 0
        and len(set(node.inputs)) == len(node.inputs)
    ]
    parts = [
        tuple(i for i in stack if (i in aliased) is are_aliased)
        for stack in sorted(stacks, key=len, reverse=True)
        for are_aliased in (True, False)
    ]
    return _disjoint([part for part in parts if len(part) > 1])


def _disjoint(stacks: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that share nothing with an earlier one."""
    found: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for stack in stacks:
        if taken.isdisjoint(stack):
            taken.update(stack)
            found.append(stack)
    return found


def _stacks_of_outputs(
    graph: Graph, taken: Sequence[tuple[int, ...]], aliased: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """The outputs that come out as stacks, by positions: those aliased with stacks, then those given whole.

    What is aliased with a single input is none of them: it is single in the next program too.
    """
    inherited = [tuple(aliased[i] for i in stack) for stack in taken if stack[0] in aliased]
    single = set(aliased.values()).difference(*inherited)
    positions: dict[int, int] = {}
    for position, value in enumerate(graph.outputs):
        positions.setdefault(value, position)
    whole: list[tuple[int, ...]] = []
    elements: dict[int, dict[int, int]] = {}
    for node in graph.nodes:
        if node.op is ELEMENTS:
            known = elements.setdefault(node.inputs[0], {})
            known.update(zip(node.signature.args[1], node.outputs, strict=True))
            if len(known) == node.signature.specs[0].shape[0]:
                values = [known[i] for i in range(len(known))]
                if positions.keys() >= set(values):
                    whole.append(tuple(positions[value] for value in values))
    whole = [stack for stack in whole if single.isdisjoint(stack)]
    return _disjoint([*inherited, *whole])


def _fed(graph: Graph, taken: Sequence[tuple[int, ...]]) -> tuple[Graph, list[Position]]:
    """The graph that takes these inputs as stacks; what its inputs are."""
    fresh = _fresh_names(graph)
    stacked = {i for stack in taken for i in stack}
    alone = [i for i in range(len(graph.inputs)) if i not in stacked]
    inputs: list[Position] = sorted([*alone, *taken], key=lambda position: _positions(position)[0])
    specs: list[TensorSpec] = []
    names: dict[int, int] = {}  # of values: those of before, those of now
    where: dict[int, tuple[int, int]] = {}  # of the inputs in stacks: which, and where in it
    stacks: dict[tuple[int, ...], int] = {}
    elements: list[list[tuple[int, int]]] = []
    for number, position in enumerate(inputs):
        first = graph.inputs[_positions(position)[0]]
        elements.append([])
        if isinstance(position, int):
            specs.append(first)
            names[-1 - position] = -1 - number
            continue
        specs.append(stack_of(first, len(position)))
        stacks[tuple(-1 - i for i in position)] = -1 - number
        for k, i in enumerate(position):
            where[-1 - i] = (-1 - number, k)
            names[-1 - i] = next(fresh)
            elements[-1].append((k, names[-1 - i]))
    nodes: list[Node] = []
    specs_before = graph.specs()
    for node in graph.nodes:
        only_stacks = node.op is STACK and len(node.signature.args) == 1
        if only_stacks and node.inputs in stacks:
            names[node.outputs[0]] = stacks[node.inputs]
        elif only_stacks and not where.keys().isdisjoint(node.inputs):
            pieces = pieces_of(node.inputs, where)
            of_pieces = [specs[-1 - p.value] if p.stack else specs_before[p.value] for p in pieces]
            named = [
                p if p.stack else replace(p, value=names.get(p.value, p.value)) for p in pieces
            ]
            nodes.append(stack_node(named, of_pieces, node.outputs[0]))
        else:
            nodes.append(replace(node, inputs=tuple(names.get(v, v) for v in node.inputs)))
    taking = [
        elements_node(-1 - number, specs[number], graph.inputs[_positions(inputs[number])[0]], some)
        for number, some in enumerate(elements)
        if some
    ]
    outputs = tuple(names.get(v, v) for v in graph.outputs)
    return Graph(tuple(specs), (*taking, *nodes), outputs), inputs


def _with_outputs(graph: Graph, positions: Sequence[Position]) -> Graph:
    """The graph that gives these, without the elements that nobody wants then."""
    where: dict[int, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.op is ELEMENTS:
            for index, value in zip(node.signature.args[1], node.outputs, strict=True):
                where.setdefault(value, (node.inputs[0], index))
    specs = graph.specs()
    fresh = _fresh_names(graph)
    nodes = list(graph.nodes)
    outputs: list[int] = []
    for position in positions:
        values = [graph.outputs[i] for i in _positions(position)]
        if isinstance(position, int):
            outputs += values
            continue
        pieces = pieces_of(values, where)
        stack = pieces[0].value
        if pieces == [Piece(stack, True, 0, len(values))] and len(values) == specs[stack].shape[0]:
            outputs.append(stack)
        else:
            outputs.append(next(fresh))
            nodes.append(stack_node(pieces, [specs[p.value] for p in pieces], outputs[-1]))
    return _without_idle_elements(replace(graph, nodes=tuple(nodes), outputs=tuple(outputs)))


def _without_idle_elements(graph: Graph) -> Graph:
    """The graph without the elements, and the nodes over nothing else, that nobody reads."""
    wanted = set(graph.outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        kept = node
        if node.op is ELEMENTS:
            some = [
                (index, value)
                for index, value in zip(node.signature.args[1], node.outputs, strict=True)
                if value in wanted
            ]
            if not some:
                continue
            if len(some) < len(node.outputs):
                stacked, spec = node.signature.specs[0], node.signature.outs[0]
                smaller = elements_node(node.inputs[0], stacked, spec, some)
                kept = replace(smaller, line=node.line)
        elif node.op is STACK and node.outputs[0] not in wanted:
            continue
        wanted.update(node.inputs)
        nodes.append(kept)
    return replace(graph, nodes=tuple(reversed(nodes)))
