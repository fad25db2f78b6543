"""What a solution means: placements with the best alternatives, exchanges, memory, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from torch_pjrt_spmd.autoshard.alternatives import Around
from torch_pjrt_spmd.autoshard.building import Built
from torch_pjrt_spmd.autoshard.flows import Node, bytes_of, wanted_by
from torch_pjrt_spmd.autoshard.lifetimes import n_bytes
from torch_pjrt_spmd.autoshard.needs import memory_of
from torch_pjrt_spmd.autoshard.network import PICO
from torch_pjrt_spmd.autoshard.plan import Exchange, Placement, Plan
from torch_pjrt_spmd.autoshard.recording import BUFFER, INPUT
from torch_pjrt_spmd.autoshard.said import Said
from torch_pjrt_spmd.autoshard.specs import Layout, exchange_time, exchanges, share, spec_of
from torch_pjrt_spmd.autoshard.spreading import PlannedValues
from torch_pjrt_spmd.autoshard.views import is_view
from torch_pjrt_spmd.roles import PARAMETER
from torch_pjrt_spmd.spec import Entry

if TYPE_CHECKING:
    from torch_pjrt_spmd.autoshard.solver.problem import Solution
    from torch_pjrt_spmd.mesh import Mesh

_WITH_ALTERNATIVES = (PARAMETER, INPUT, BUFFER)


def plan_of(
    built: Built,
    solution: Solution,
    took: Mapping[str, float],
    target: Mesh | None,
    said: Said,
    n_arguments: int,
    across: Sequence[str] = (),
) -> Plan:
    """The plan that a solution is."""
    choice = solution.choice
    found = list(each_exchange(built, choice))
    placements = list(_placements(built, choice, said.names))
    network = built.network
    specs: list[tuple[Entry, ...] | None] = [None] * n_arguments
    for i, given in enumerate(built.recorded.inputs):
        if given.role == INPUT and given.position is not None:
            specs[given.position] = _spec(built, -i - 1, built.layout(choice, -i - 1))
    exchanged = sum(e.seconds for e in found)
    return Plan(
        mesh={axis.name: axis.size for axis in network.axes} if target is None else target.sizes,
        figures=built.chip,
        placements=placements,
        activations=[*_activations(built, choice, said.names), *_taken(built, choice)],
        exchanges=found,
        memory=memory_of(built, choice),
        seconds=solution.cost / PICO,
        compute_s=solution.cost / PICO - exchanged,
        lower_bound_s=solution.lower_bound / PICO,
        proven=solution.proven,
        flops=flops_of(built, choice),
        took=took,
        rematerialized=tuple(m for c in built.choices for m in c.modules) if built.again else (),
        notes=tuple(_notes(built)),
        across=tuple(across),
        input_specs=tuple(specs),
        target=target,
        gradients=dict(_gradients(built, choice)),
        values=None if target is None else _values(built, choice),
        names=frozenset(built.recorded.parameters),
        unread=said.unread,
    )


def _gradients(built: Built, choice: np.ndarray) -> Iterator[tuple[str, tuple[Entry, ...]]]:
    for name, value in built.recorded.gradients.items():
        spec = _spec(built, value, built.layout(choice, value))
        if spec is not None:
            yield name, spec


def _values(built: Built, choice: np.ndarray) -> PlannedValues:
    """How values lie that products or exchanges make, or that are in memory; and who takes one otherwise."""
    graph = built.recorded.graph
    positions = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    kept = built.lifetimes.stored | set(built.recorded.updated.values())
    known: dict[tuple[object, Layout], tuple[Entry, ...] | None] = {}
    made: dict[int, tuple[Entry, ...]] = {}
    taken: dict[tuple[int, int], tuple[int, tuple[Entry, ...]]] = {}

    def spec_of_value(value: int, layout: Layout) -> tuple[Entry, ...] | None:
        key = (built.operators.atoms[value], layout)
        if key not in known:
            known[key] = _spec(built, value, layout)
        return known[key]

    for i, op in enumerate(built.operators.all):
        if is_view(op):
            continue
        node = built.of_class[built.tied.of_operator[i]]
        strategy = built.nodes[node].strategies[choice[node]]
        for v, wanted in zip(op.inputs, strategy.inputs, strict=True):
            if not built.operators.specs[v].shape or wanted == built.layout(choice, v):
                continue
            base = built.views.base[v]
            of_base = spec_of_value(base, built.views.on_base(wanted, v))
            spec = spec_of_value(v, wanted)
            if of_base is not None:
                taken[positions[op.outputs[0]], v] = base, of_base
            elif spec is not None:
                taken[positions[op.outputs[0]], v] = v, spec
        is_computed = op.letters.is_heavy or strategy.exchanges
        for v, layout in zip(op.outputs, strategy.outputs, strict=True):
            if built.operators.specs[v].shape and (is_computed or v in kept):
                spec = spec_of_value(v, layout)
                if spec is not None:
                    made[v] = spec
    return PlannedValues(graph, made, taken)


def each_exchange(built: Built, choice: np.ndarray) -> Iterator[Exchange]:
    """What chips exchange by a choice: within operators, and where a value is wanted otherwise than it
    lies."""
    names = [axis.name for axis in built.network.axes]
    inside = {number for c in built.choices for number in c.inside} if built.again else set()
    for node, k in zip(built.nodes, choice, strict=True):
        if node.is_operator:
            op = built.operators.all[node.members[0]]
            for e in node.strategies[k].exchanges:
                kind, size, along, runs = e
                times = len(node.members) * (2 if node.number in inside else 1)
                seconds = times * exchange_time(e, built.network) / PICO
                axes = tuple(names[a] for a in along)
                yield Exchange(kind, axes, size, runs * times, seconds, op.name)
    for flow in built.flows:
        given = built.nodes[flow.maker].output(choice[flow.maker], flow.result)
        wanted = wanted_by(
            built.nodes[flow.taker], flow.slot, choice[flow.taker], built.views, flow.value
        )
        size = bytes_of(built.operators, built.views, flow.value)
        for e in exchanges(given, wanted, size, built.network):
            kind, of_chip, along, _ = e
            seconds = flow.times * exchange_time(e, built.network) / PICO
            axes = tuple(names[a] for a in along)
            yield Exchange(kind, axes, of_chip, flow.times, seconds, name_of(built, flow.value))


def name_of(built: Built, value: int) -> str:
    """What a value is called."""
    if value < 0:
        return built.recorded.inputs[-value - 1].name
    for name, number in built.recorded.activations.items():
        if number == value:
            return name
    i, _ = built.makers[value]
    return built.operators.all[i].name


def _spec(built: Built, value: int, layout: Layout) -> tuple[Entry, ...] | None:
    axes = built.network.axes
    return spec_of(
        layout, built.operators.atoms[value], [a.name for a in axes], [a.size for a in axes]
    )


def _placements(built: Built, choice: np.ndarray, fixed: frozenset[str]) -> Iterator[Placement]:
    around = Around(built.problem, choice)
    for place, node in enumerate(built.nodes):
        if not node.is_input:
            continue
        of = built.recorded.inputs[node.members[0]]
        names = tuple(built.recorded.inputs[i].name for i in node.members)
        value = -node.members[0] - 1
        alternative = None
        is_fixed = not fixed.isdisjoint(names)
        if of.role in _WITH_ALTERNATIVES and node.size > 1:
            alternative = _best_other(built, node, place, choice, around)
        spec = _spec(built, value, node.layouts[choice[place]]) or ()
        size = n_bytes(built.operators, value)
        sizes = [axis.size for axis in built.network.axes]
        yield Placement(
            of.name,
            names,
            of.role,
            tuple(built.operators.specs[value].shape),
            str(built.operators.specs[value].dtype).removeprefix("torch."),
            spec,
            size,
            size // share(node.layouts[choice[place]], sizes),
            *(alternative or (None, None, "fixed" if is_fixed else "")),
            is_fixed,
        )


def _best_other(
    built: Built, node: Node, place: int, choice: np.ndarray, around: Around
) -> tuple[tuple[Entry, ...], float, str]:
    """The other layout that costs least, by how many seconds, and why."""
    more, steps = around.costs(place)
    more = more.copy()
    more[choice[place]] = np.inf
    best = int(more.argmin())
    with_it = around.choice_with(place, best, steps)
    value = -node.members[0] - 1
    limit = built.problem.usage_limit
    peak = built.problem.peak(with_it)
    parts = []
    if limit is not None and peak > limit:
        parts.append(f"memory {_mib(peak - limit)} over the limit")
    parts += _differences(built, choice, with_it)
    return _spec(built, value, node.layouts[best]) or (), float(more[best]) / PICO, "; ".join(parts)


def _differences(built: Built, before: np.ndarray, after: np.ndarray) -> list[str]:
    kinds: Counter[str] = Counter()
    for sign, choice in ((-1, before), (1, after)):
        for e in each_exchange(built, choice):
            kinds[f"{e.kind} along {', '.join(e.axes)}"] += round(sign * e.seconds * PICO)
    computing = sum(
        int(costs[b] - costs[a])
        for costs, a, b in zip(built.problem.node_costs, before, after, strict=True)
    )
    inside = sum(
        exchange_time(e, built.network) * len(node.members) * sign
        for node, a, b in zip(built.nodes, before, after, strict=True)
        if node.is_operator
        for sign, k in ((-1, a), (1, b))
        for e in node.strategies[k].exchanges
    )
    kinds["computing and memory's bandwidth"] = computing - inside
    worst = sorted(kinds.items(), key=lambda x: -abs(x[1]))[:2]
    found = [f"{name} {t / 1e6:+,.1f} us" for name, t in worst if abs(t) >= 1e5]
    used = built.problem.peak(after) - built.problem.peak(before)
    if abs(used) >= 1 << 20:
        found.append(f"memory {'+' if used > 0 else '-'}{_mib(abs(used))}")
    return found


def _mib(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"


def _activations(built: Built, choice: np.ndarray, fixed: frozenset[str]) -> Iterator[Placement]:
    axes = built.network.axes
    sizes = [a.size for a in axes]
    by_place: dict[tuple[object, ...], list[tuple[str, int]]] = {}
    for name, value in built.recorded.activations.items():
        shape = tuple(built.operators.specs[value].shape)
        by_place.setdefault((*built.node_of(value), shape, built.views.ways[value]), []).append(
            (name, value)
        )
    for named in by_place.values():
        name, value = named[0]
        layout = built.layout(choice, value)
        spec = _spec(built, value, layout)
        if spec is None:
            continue
        size = n_bytes(built.operators, value)
        shape = tuple(built.operators.specs[value].shape)
        dtype = str(built.operators.specs[value].dtype).removeprefix("torch.")
        names = tuple(n for n, _ in named)
        yield Placement(
            name, names, "activation", shape, dtype, spec, size, size // share(layout, sizes),
            fixed=not fixed.isdisjoint(names),
        )  # fmt: skip


def _taken(built: Built, choice: np.ndarray) -> Iterator[Placement]:
    """Arguments of modules that the operator which makes their result takes otherwise than they lie."""
    sizes = [a.size for a in built.network.axes]
    found: dict[tuple[int, int, Layout, tuple[int, ...]], list[tuple[str, int]]] = {}
    for name, value in built.recorded.takes.items():
        made = built.views.base[built.recorded.activations[name]]
        if made < 0:
            continue
        node, _ = built.node_of(made)
        op = built.operators.all[built.makers[made][0]]
        for slot, v in enumerate(op.inputs):
            if built.views.base[v] != built.views.base[value]:
                continue
            wanted = wanted_by(built.nodes[node], slot, choice[node], built.views, v)
            layout = built.views.on_view(wanted, value)
            if layout != built.layout(choice, value):
                shape = tuple(built.operators.specs[value].shape)
                found.setdefault((node, slot, layout, shape), []).append((name, value))
            break
    for (_, _, layout, shape), named in found.items():
        name, value = named[0]
        spec = _spec(built, value, layout)
        if spec is not None:
            size = n_bytes(built.operators, value)
            dtype = str(built.operators.specs[value].dtype).removeprefix("torch.")
            names = tuple(n for n, _ in named)
            parts = share(layout, sizes)
            yield Placement(name, names, "argument", shape, dtype, spec, size, size // parts)


def flops_of(built: Built, choice: np.ndarray) -> int:
    """Of one chip, in products."""
    inside = {number for c in built.choices for number in c.inside} if built.again else set()
    total = 0
    for node, k in zip(built.nodes, choice, strict=True):
        if not node.is_operator:
            continue
        works = built.operators.all[node.members[0]].letters.works
        shares: Sequence[int] = node.strategies[k].parts
        runs = len(node.members) * (2 if node.number in inside else 1)
        total += runs * sum(2 * n // parts for (n, _), parts in zip(works, shares, strict=True))
    return total


def _notes(built: Built) -> Iterator[str]:
    unknown: dict[str, set[str]] = {}
    for op in built.operators.all:
        for name in op.letters.unknown:
            unknown.setdefault(op.name, set()).add(name)
    for name, of in unknown.items():
        yield f"`{name}` is computed by each chip alike: nothing is known of {', '.join(sorted(of))}"
