"""What flows between nodes: the edges of the problem, with tables of what it costs to have values lie
otherwise.

Several operators that read one value at about the same time get it by way of a hub, a node that decides how
the value lies for them: what chips exchange for it is exchanged once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from torch_pjrt_spmd.autoshard.network import Network
from torch_pjrt_spmd.autoshard.operators import Operators
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.repeats import Tied
from torch_pjrt_spmd.autoshard.specs import Layout, resharding
from torch_pjrt_spmd.autoshard.strategies import Strategy
from torch_pjrt_spmd.autoshard.views import Views, is_view

_NEAR = 64  # operators between readers of one hub, at most


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """What is decided together.

    number      of its class; -1: a hub. members: of operators or inputs, by their index; of a hub the value.
    strategies  of operators. layouts: of inputs and hubs.
    """

    number: int
    members: Sequence[int]
    is_input: bool
    strategies: Sequence[Strategy]
    layouts: Sequence[Layout]

    @property
    def is_operator(self) -> bool:
        """Whether it has strategies."""
        return bool(self.strategies)

    def output(self, choice: int, k: int) -> Layout:
        """How its k-th result lies by a choice."""
        return self.strategies[choice].outputs[k] if self.strategies else self.layouts[choice]

    @property
    def size(self) -> int:
        """How many choices there are."""
        return len(self.strategies) or len(self.layouts)


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """A result of a node that another one takes. slot: of an operator's inputs; -1: of an input or hub, it
    becomes that. value: as it is taken, a view of the result perhaps. times: how often in a step.
    """

    maker: int
    result: int
    taker: int
    slot: int
    times: int
    value: int


Makers = Mapping[int, tuple[int, int]]


def flows_of(
    recorded: Recorded,
    operators: Operators,
    tied: Tied,
    views: Views,
    nodes: list[Node],
    of_class: Mapping[int, int],
    makers: Makers,
) -> list[Flow]:
    """All of a graph; hubs are appended to `nodes`."""

    def node_of(value: int) -> tuple[int, int]:
        value = views.base[value]
        if value < 0:
            return of_class[tied.of_input[-value - 1]], 0
        i, k = makers[value]
        return of_class[tied.of_operator[i]], k

    counts: dict[tuple[int, int, int, int, Any], list[Any]] = {}
    for i, op in enumerate(operators.all):
        if is_view(op):
            continue
        taker = of_class[tied.of_operator[i]]
        for slot, v in enumerate(op.inputs):
            if operators.specs[v].shape:
                key = (*node_of(v), taker, slot, views.ways[v])
                found = counts.setdefault(key, [0, v, []])
                found[0] += 1
                found[2].append((views.base[v], i))
    flows: list[Flow] = []
    for i, v in recorded.updated.items():
        if operators.specs[v].shape and operators.specs[v].shape == operators.specs[-i - 1].shape:
            key = (*node_of(v), of_class[tied.of_input[i]], -1, views.ways[v])
            found = counts.setdefault(key, [0, v, []])
            found[0] += 1
    at_hub: defaultdict[tuple[int, int], list[tuple[Flow, list[tuple[int, int]]]]] = defaultdict(
        list
    )
    for (maker, result, taker, slot, _), (times, v, where) in counts.items():
        flow = Flow(maker, result, taker, slot, times, v)
        if slot < 0 or nodes[maker].is_input:
            flows.append(flow)
        else:
            at_hub[maker, result].append((flow, where))
    for of_value in at_hub.values():
        flows += _through_hubs(of_value, nodes, operators, views)
    return flows


def _through_hubs(
    of_value: list[tuple[Flow, list[tuple[int, int]]]],
    nodes: list[Node],
    operators: Operators,
    views: Views,
) -> list[Flow]:
    """Flows of one result, those of readers that are near each other by way of a hub."""
    if len(of_value) == 1:
        return [of_value[0][0]]
    values = sorted(v for v, _ in of_value[0][1])
    one = values[len(values) // 2]  # of several layers one in the middle
    placed: list[tuple[int, Flow]] = []
    found: list[Flow] = []
    for flow, where in of_value:
        at = next((i for v, i in where if v == one), None)
        if at is None:
            found.append(flow)
        else:
            placed.append((at, flow))
    placed.sort(key=lambda x: x[0])
    groups: list[list[tuple[int, Flow]]] = []
    for at, flow in placed:
        if groups and at - groups[-1][-1][0] <= _NEAR:
            groups[-1].append((at, flow))
        else:
            groups.append([(at, flow)])
    for group in groups:
        if len(group) == 1:
            found.append(group[0][1])
            continue
        first = group[0][1]
        maker = nodes[first.maker]
        layouts = {maker.output(j, first.result): None for j in range(maker.size)}
        for _, flow in group:
            for s in nodes[flow.taker].strategies:
                layouts[views.on_base(s.inputs[flow.slot], flow.value)] = None
        base = views.base[first.value]
        hub = len(nodes)
        nodes.append(Node(-1, (base,), False, (), tuple(layouts)))
        found.append(Flow(first.maker, first.result, hub, -1, max(f.times for _, f in group), base))
        found += [Flow(hub, 0, f.taker, f.slot, f.times, f.value) for _, f in group]
    return found


def bytes_of(operators: Operators, views: Views, value: int) -> int:
    """What has to move of a value: a part of its base, or its base that it repeats."""
    specs = operators.specs
    return min(prod(specs[v].shape) * specs[v].dtype.itemsize for v in (value, views.base[value]))


def wanted_by(node: Node, slot: int, choice: int, views: Views, value: int) -> Layout:
    """How the base of what a node takes is to lie by a choice."""
    if slot < 0:
        return node.layouts[choice]
    return views.on_base(node.strategies[choice].inputs[slot], value)


def tables_of(
    flows: Sequence[Flow],
    nodes: Sequence[Node],
    operators: Operators,
    views: Views,
    network: Network,
) -> tuple[list[tuple[int, int]], list[np.ndarray]]:
    """One table for each pair of nodes."""
    found: dict[tuple[int, int], np.ndarray] = {}
    known: dict[Any, np.ndarray] = {}
    for flow in flows:
        maker, taker = nodes[flow.maker], nodes[flow.taker]
        given = tuple(maker.output(j, flow.result) for j in range(maker.size))
        wanted = tuple(wanted_by(taker, flow.slot, j, views, flow.value) for j in range(taker.size))
        size = bytes_of(operators, views, flow.value)
        key = (given, wanted, size)
        table = known.get(key)
        if table is None:
            rows, of_row = _distinct(given)
            columns, of_column = _distinct(wanted)
            small = np.array(
                [[resharding(a, b, size, network) for b in columns] for a in rows], np.int64
            )
            table = known[key] = small[of_row][:, of_column]
        pair = (flow.maker, flow.taker)
        if pair[0] > pair[1]:
            pair, table = (pair[1], pair[0]), table.T
        before = found.get(pair)
        found[pair] = flow.times * table + (0 if before is None else before)
    return list(found), [np.ascontiguousarray(t) for t in found.values()]


def _distinct(layouts: Sequence[Layout]) -> tuple[list[Layout], np.ndarray]:
    numbers: dict[Layout, int] = {}
    of = np.array([numbers.setdefault(x, len(numbers)) for x in layouts], np.int64)
    return list(numbers), of
