"""Write layers that repeat as one loop.

before  v0 = sin(i0)      after  v2 = loop(i0), 3 iterations of
        v1 = sin(v0)                 v0 = sin(i0)
        v2 = sin(v1)                 return v0
        return v2                return v2
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.graph.signature import READ
from torch_pjrt.passes.rolling.detection import Repetition, repetitions
from torch_pjrt.passes.rolling.emission import with_loops
from torch_pjrt.passes.rolling.gradients import with_positions_as_numbers
from torch_pjrt.passes.rolling.wiring import Carried, Inputs, Wiring, Xs, wired
from torch_pjrt.passes.runner import Stage
from torch_pjrt.settings import settings


@dataclass(frozen=True, slots=True)
class Where:
    """Where a loop is wanted.

    trip_count    it runs so often at least.
    saved         so many nodes fewer are compiled at least.
    made_bytes    each iteration reads no more than this of what the program has made for it alone: that is
                  copied into a stack, and out of it.
    given_bytes   and no more than this of what it is given for it alone, weights: that stays stacked, and is
                  copied out of it. Where all iterations are computed at once, nothing is.
    """

    trip_count: int
    saved: int
    made_bytes: float
    given_bytes: float


# What `settings.roll_layers` may say, beside "off". Measured on CPU: docs/rolled-layers.md.
_ANY = float("inf")
WHERE = {"auto": Where(12, 128, 2**20, 2**19), "on": Where(3, 8, _ANY, _ANY)}
# The same for a recurrence: iterations that carry something on and are given no weights of their own, as
# those over the positions of a sequence. Nothing is stacked for them, and written out XLA compiles them
# slowly.
WHERE_RECURRENT = {"auto": Where(8, 48, 2**20, _ANY), "on": WHERE["on"]}


@dataclass(frozen=True, slots=True)
class Refused:
    """A repetition that is no loop: how often, of how many operators, the first of them, and why not."""

    trip_count: int
    operators: int
    first: str
    why: str


@dataclass(frozen=True, slots=True)
class RollPlan:
    """What of a graph becomes loops, and what might have."""

    graph: Graph
    inputs: Inputs
    wirings: list[Wiring] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def rolled(self) -> Graph:
        """The graph with its loops."""
        return with_loops(self.graph, self.wirings, self.inputs, WHERE["on"].trip_count)


@dataclass(frozen=True, slots=True)
class RollLayers:
    """As `torch_pjrt.config.roll_layers` says: "on" wherever it can be, "auto" where it pays, "off" nowhere.

    A repetition of the same operators becomes a loop where its iterations are wired alike; the rest of it
    stays as it was.
    """

    name: str = "roll-layers"
    stage: Stage = Stage.ROLL

    def __call__(self, graph: Graph) -> Graph:
        plan = self.plan(graph)
        if plan is None or not plan.wirings:
            return graph
        return plan.rolled()

    def plan(self, graph: Graph) -> RollPlan | None:
        """What this pass would do to a graph; None where nothing repeats, or nothing is wanted."""
        mode = settings.roll_layers
        if mode not in WHERE or len(graph.nodes) <= WHERE["on"].saved:
            return None
        graph = with_positions_as_numbers(graph, WHERE["on"].trip_count)
        graph = _with_reads_at_their_makers(graph)
        found = repetitions([node.signature.number for node in graph.nodes], WHERE["on"].trip_count)
        if not found:
            return None
        plan = RollPlan(graph, Inputs(graph))
        _choose(found, plan, mode)
        plan.wirings.sort(key=lambda wiring: wiring.start)
        return plan


def _choose(found: list[Repetition], plan: RollPlan, mode: str) -> None:
    """Take those that save most, where they overlap."""
    waiting = [*reversed(found)]
    while waiting:
        repetition = waiting.pop()
        least = WHERE["on"]
        if repetition.repeats < least.trip_count or repetition.saved < least.saved:
            continue
        wiring = wired(repetition, plan.inputs, least.trip_count)
        if wiring is None:
            if repetition.repeats < 2 * least.trip_count:
                plan.refused.append(
                    _refused(repetition, plan, "its iterations are wired differently")
                )
            waiting.append(replace(repetition, period=2 * repetition.period))
        else:
            why = _objection(wiring, plan, mode)
            if why is None:
                plan.wirings.append(wiring)
            else:
                plan.refused.append(_refused(wiring, plan, why))
            taken = wiring.start, wiring.stop
            waiting.append(repetition)
            waiting = [part for one in waiting for part in one.without(*taken)]
        waiting.sort(key=lambda r: (r.saved, -r.period, -r.start))


def _objection(wiring: Wiring, plan: RollPlan, mode: str) -> str | None:
    made, given = _bytes_of_an_iteration(wiring, plan)
    where = (WHERE_RECURRENT if _carries(wiring) and not given else WHERE)[mode]
    if wiring.trip_count < where.trip_count:
        return f"it has {wiring.trip_count} iterations; a loop pays from {where.trip_count} on"
    if made > where.made_bytes:
        return f"an iteration reads {made:,} bytes saved for it; a loop pays up to {where.made_bytes:,}"
    if given > where.given_bytes:
        return f"an iteration reads {given:,} bytes of weights; a loop pays up to {where.given_bytes:,}"
    if wiring.saved < where.saved:
        return f"it saves {wiring.saved} operators; a loop pays from {where.saved} on"
    return None


def _bytes_of_an_iteration(wiring: Wiring, plan: RollPlan) -> tuple[int, int]:
    """What an iteration reads for it alone: of what the program makes, and of what it is given."""
    each = {source.values for source in wiring.sources if isinstance(source, Xs)}
    specs = plan.graph.specs()
    nbytes = {v: specs[v].numel * specs[v].dtype.itemsize for values in each for v in values}
    made = sum(n for v, n in nbytes.items() if v >= 0)
    given = sum(n for v, n in nbytes.items() if v < 0) if _carries(wiring) else 0
    return made // wiring.trip_count, given // wiring.trip_count


def _carries(wiring: Wiring) -> bool:
    return any(isinstance(source, Carried) for source in wiring.sources)


def _refused(what: Repetition | Wiring, plan: RollPlan, why: str) -> Refused:
    trip_count = what.trip_count if isinstance(what, Wiring) else what.repeats
    return Refused(trip_count, what.period, str(plan.graph.nodes[what.start].op), why)


def _with_reads_at_their_makers(graph: Graph) -> Graph:
    """A view that alone reads a value comes directly after it, and so into the same iteration."""
    readers: dict[int, int] = {}
    for node in graph.nodes:
        for value in node.inputs:
            readers[value] = readers.get(value, 0) + 1
    for value in graph.outputs:
        readers[value] = readers.get(value, 0) + 1
    makers = {
        value: position for position, node in enumerate(graph.nodes) for value in node.outputs
    }
    following: dict[int, list[int]] = {}
    moved: set[int] = set()
    for position, node in enumerate(graph.nodes):
        if node.op is READ and readers[node.inputs[0]] == 1 and node.inputs[0] in makers:
            following.setdefault(makers[node.inputs[0]], []).append(position)
            moved.add(position)
    if not moved:
        return graph
    ordered: list[Node] = []
    for first in range(len(graph.nodes)):
        rest = [] if first in moved else [first]
        while rest:
            position = rest.pop()
            ordered.append(graph.nodes[position])
            rest += reversed(following.get(position, []))
    return replace(graph, nodes=tuple(ordered))
