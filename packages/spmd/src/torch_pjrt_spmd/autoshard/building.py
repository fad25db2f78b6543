"""The solver's problem of a recorded function: nodes, edges, costs in picoseconds, memory in bytes of a
chip."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from torch_pjrt_spmd.autoshard.chips import Chip
from torch_pjrt_spmd.autoshard.flows import Flow, Makers, Node, flows_of, tables_of
from torch_pjrt_spmd.autoshard.lifetimes import (
    Lifetimes,
    kept_times,
    lifetimes_of,
    n_bytes,
    of_classes,
)
from torch_pjrt_spmd.autoshard.network import PICO, Network
from torch_pjrt_spmd.autoshard.operators import Operator, Operators
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.remat import Choice, choices_of
from torch_pjrt_spmd.autoshard.repeats import Tied
from torch_pjrt_spmd.autoshard.said import Fixed
from torch_pjrt_spmd.autoshard.solver.problem import Problem
from torch_pjrt_spmd.autoshard.specs import Layout, exchange_time, layouts_of, share
from torch_pjrt_spmd.autoshard.strategies import Strategy, strategies_of
from torch_pjrt_spmd.autoshard.views import Views, is_view, views_of

_BYTES_OF_A_PICOSECOND = (
    1024  # of inputs: of two plans that cost the same, the one of smaller parts
)
_SMALL = 256  # elements of a parameter that is not worth spreading


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A problem and what its parts stand for."""

    recorded: Recorded
    operators: Operators
    tied: Tied
    lifetimes: Lifetimes
    views: Views
    makers: Makers
    network: Network
    chip: Chip
    nodes: Sequence[Node]
    flows: Sequence[Flow]
    problem: Problem
    of_class: dict[int, int]
    times: np.ndarray
    choices: Sequence[Choice]
    alive: Mapping[tuple[int, int], np.ndarray]
    again: bool
    on_cpus: bool

    def node_of(self, value: int) -> tuple[int, int]:
        """The node that makes a value or its base, and which of its results that is."""
        value = self.views.base[value]
        if value < 0:
            return self.of_class[self.tied.of_input[-value - 1]], 0
        i, k = self.makers[value]
        return self.of_class[self.tied.of_operator[i]], k

    def layout(self, choice: np.ndarray, value: int) -> Layout:
        """How a value lies by a choice."""
        node, k = self.node_of(value)
        return self.views.on_view(self.nodes[node].output(choice[node], k), value)


def build(
    recorded: Recorded,
    operators: Operators,
    tied: Tied,
    network: Network,
    chip: Chip,
    memory: int | None,
    fixed: Fixed,
    again: bool = False,
    on_cpus: bool = False,
) -> Built:
    """The problem of a function.

    fixed     what is said already. again: layers that repeat are computed again.
    on_cpus   that is what compiles the program: see `lifetimes.py` and `needs.py` for what it does otherwise.
    """
    lifetimes = lifetimes_of(operators, recorded, on_cpus)
    views = views_of(operators, len(recorded.inputs))
    times = kept_times(operators, lifetimes, tied.runs)
    alive = of_classes(operators, lifetimes, tied, times)
    nodes: list[Node] = []
    costs: list[np.ndarray] = []
    usages: list[np.ndarray] = []
    intervals: list[tuple[int, int]] = []
    of_class: dict[int, int] = {}
    sizes = [axis.size for axis in network.axes]
    ways: dict[int, list[Strategy]] = {}
    for number, members in tied.inputs.items():
        value = -members[0] - 1
        small = prod(operators.specs[value].shape) < _SMALL
        whole = (-1,) * len(sizes)
        layouts = [whole] if small else list(layouts_of(operators.atoms[value], sizes))
        layouts = list(fixed.layouts(number, layouts, views))
        size = n_bytes(operators, value)
        of_class[number] = len(nodes)
        nodes.append(Node(number, members, True, (), layouts))
        usages.append(np.array([len(members) * size // share(x, sizes) for x in layouts], np.int64))
        costs.append(usages[-1] // _BYTES_OF_A_PICOSECOND)
        intervals.append((0, len(times)))
    choices = choices_of(recorded, operators, tied, views, alive)
    twice = {number for c in choices for number in c.inside} if again else set()
    once = {x for c in choices for x in c.kept} if again else set()
    for number, members in tied.operators.items():
        op = operators.all[members[0]]
        if is_view(op):
            continue
        if id(op.letters) not in ways:
            ways[id(op.letters)] = strategies_of(op.letters, network)
        strategies = fixed.strategies(number, ways[id(op.letters)], views)
        of_class[number] = len(nodes)
        nodes.append(Node(number, members, False, strategies, ()))
        runs = len(members) * (2 if number in twice else 1)
        costs.append(runs * _costs(op, operators, lifetimes, strategies, network, chip))
        used, when = _lives(op, number, operators, alive, once, strategies, sizes)
        usages.append(used)
        intervals.append(when)
    makers = {v: (i, k) for i, op in enumerate(operators.all) for k, v in enumerate(op.outputs)}
    flows = flows_of(recorded, operators, tied, views, nodes, of_class, makers)
    for hub in nodes[len(costs) :]:
        costs.append(np.zeros(hub.size, np.int64))
        usages.append(np.zeros(hub.size, np.int64))
        intervals.append((0, 0))
    edges, tables = tables_of(flows, nodes, operators, views, network)
    problem = Problem(
        costs,
        usages,
        np.array(intervals, np.int64).reshape(-1, 2),
        np.array(edges, np.int64).reshape(-1, 2),
        tables,
        np.arange(len(tables), dtype=np.int64),
        memory,
    )
    return Built(
        recorded, operators, tied, lifetimes, views, makers, network, chip, nodes, flows, problem,
        of_class, times, choices, alive, again, on_cpus,
    )  # fmt: skip


def _lives(
    op: Operator,
    number: int,
    operators: Operators,
    alive: Mapping[tuple[int, int], np.ndarray],
    once: Collection[tuple[int, int]],
    strategies: Sequence[Strategy],
    sizes: Sequence[int],
) -> tuple[np.ndarray, tuple[int, int]]:
    """The memory of an operator's results by strategy, and when they live.

    Of results that live at other times than most of them, `needs.py` knows; a node has one interval.
    """
    by_interval: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for k, v in enumerate(op.outputs):
        if (number, k) in alive:
            counts = alive[number, k]
            there = np.flatnonzero(counts)
            n = 1 if (number, k) in once else int(counts.max())
            when = int(there[0]), int(there[-1]) + 1
            by_interval.setdefault(when, []).append((k, n * n_bytes(operators, v)))
    if not by_interval:
        return np.zeros(len(strategies), np.int64), (0, 0)
    when = max(by_interval, key=lambda x: (x[1] - x[0]) * sum(n for _, n in by_interval[x]))
    used = np.zeros(len(strategies), np.int64)
    for k, n in by_interval[when]:
        used += [n // share(s.outputs[k], sizes) for s in strategies]
    return used, when


def _costs(
    op: Operator,
    operators: Operators,
    lifetimes: Lifetimes,
    strategies: Sequence[Strategy],
    network: Network,
    chip: Chip,
) -> np.ndarray:
    """Of one such operator by each strategy: the longer of computing and reading memory, then exchanges."""
    sizes = [axis.size for axis in network.axes]
    found = np.zeros(len(strategies), np.int64)
    bits = compute_bits(op, operators)
    for j, s in enumerate(strategies):
        flops = sum(2 * n / parts for (n, _), parts in zip(op.letters.works, s.parts, strict=True))
        moved = 0.0
        for v, layout in (
            *zip(op.inputs, s.inputs, strict=True),
            *zip(op.outputs, s.outputs, strict=True),
        ):
            if lifetimes.base[v] in lifetimes.stored:
                moved += n_bytes(operators, v) / share(layout, sizes)
        computing = max(flops / chip.flops_of(bits), moved / chip.memory_bandwidth)
        found[j] = round(PICO * computing) + sum(exchange_time(e, network) for e in s.exchanges)
    return found


def compute_bits(op: Operator, operators: Operators) -> int:
    """Of an element in the operator's products."""
    found = [operators.specs[v].dtype for v in op.inputs]
    return max((8 * d.itemsize for d in found if d.is_floating_point), default=32)
