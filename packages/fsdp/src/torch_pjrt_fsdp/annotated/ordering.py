"""The order of gathers: a block's parameters are gathered once there is what the block computes on.

before  v1 = annotate(v0, "fsdp.here")       v0: what comes into the block, or the gradient that does
        v2 = annotate(i0, "fsdp.parts")      i0: a parameter
        v3 = annotate(v2, gathered)
        v4 = mm(v1, v3)
then    v4 = mm(v0, v3)                      `ReadThroughMarks`: v1 only tells where the block begins
after   v2 = annotate(i0, "fsdp.parts")
        v1, v5 = fsdp.tied(v0, v2)           `TieGathers`, a barrier: no result is there before all inputs are
        v3 = annotate(v5, gathered)
        v4 = mm(v1, v3)

Where nothing orders them, XLA is free to gather the parameters of all blocks at the start of the program:
what it needs for that is there. Nodes are in the order in which they were recorded. So a gather belongs to
the last `fsdp.here` before its first reader: in forward, in backward, and where a checkpoint computes again.
With prefetch it is tied to one before that. What is rolled into a loop is ordered by the loop. That is why
marks are read through before: a loop would keep v0 and v1 for backward, both of each layer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import Annotation, FunctionOp, annotation_of, intern
from torch_pjrt.plugin import Graph, Node, Slot, Stage, aten

if TYPE_CHECKING:
    import jax

# What a block's forward begins or ends with, and the gradient of that. Arguments: of each of the two, how
# many of these before it the gathers that follow may begin (0: not before it; None: at any time).
HERE, HERE_BACK = "fsdp.here", "fsdp.here.back"
# In the place of a number: what the block says that begins (in backward: that ends) with this value, if one
# does; else what was said before.
AS_THE_OTHER = "as the other"
PARTS = "fsdp.parts"  # as in gathering.py, which is not imported before somebody shards
_ON_THE_WAY = frozenset(("spmd.sharding.forward", "fsdp.again", "fsdp.gathered"))


def _tied(*arrays: jax.Array) -> Sequence[Any]:
    from jax import lax

    return lax.optimization_barrier(arrays)


_TIED = FunctionOp("fsdp.tied", _tied, ())


@dataclass(frozen=True, slots=True)
class ReadThroughMarks:
    """What reads a mark's result reads what was marked. A value is marked once."""

    name: str = "read-through-marks"
    stage: Stage = Stage.CLEAN

    def __call__(self, graph: Graph) -> Graph:
        marked: dict[int, int] = {}  # where marks are, by the value that they mark
        names: dict[int, int] = {}
        nodes: list[Node] = []
        for node in graph.nodes:
            if any(v in names for v in node.inputs):
                node = replace(node, inputs=tuple([names.get(v, v) for v in node.inputs]))  # noqa: PLW2901
            if _is_here(node):
                value = node.inputs[0]
                names[node.outputs[0]] = value
                at = marked.setdefault(value, len(nodes))
                if at < len(nodes):  # a block ends and the next one begins with the same value
                    if _distance(nodes[at]) == AS_THE_OTHER:
                        nodes[at] = replace(nodes[at], signature=node.signature)
                    continue
            nodes.append(node)
        if not names:
            return graph
        outputs = tuple([names.get(v, v) for v in graph.outputs])
        return replace(graph, nodes=tuple(nodes), outputs=outputs)


@dataclass(frozen=True, slots=True)
class TieGathers:
    """Gathers of parameters wait for what their block computes on."""

    name: str = "tie-gathers"
    stage: Stage = Stage.ROLL

    def __call__(self, graph: Graph) -> Graph:
        ties = _ties(graph)
        return graph if not ties else _without_unread(_rewired(graph, ties), graph)


@dataclass(eq=False)
class _Gather:
    """The nodes from a parameter's parts to the whole of it. `reader`: the position of its first reader."""

    parts: Node
    way: tuple[Node, ...]
    reader: int


def _is_here(node: Node) -> bool:
    annotation = annotation_of(node)
    return annotation is not None and annotation.kind in (HERE, HERE_BACK)


def _distance(node: Node) -> Any:
    annotation = annotation_of(node)
    assert annotation is not None
    return annotation.args[0 if annotation.kind == HERE else 1]


def _ties(graph: Graph) -> dict[int, list[_Gather]]:
    """By the position of a `fsdp.here` what is to wait for it."""
    here = [i for i, node in enumerate(graph.nodes) if _is_here(node)]
    if not here:
        return {}
    distances: list[int | None] = []
    for i in here:
        asked = _distance(graph.nodes[i])
        before = distances[-1] if distances else None
        distances.append(before if asked == AS_THE_OTHER else asked)
    made_at = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs}
    ties: dict[int, list[_Gather]] = {}
    for gather in _gathers(graph):
        own = bisect_left(here, gather.reader) - 1
        ahead = distances[own] if own >= 0 else None
        at = -1 if ahead is None else own - ahead
        if at >= 0 and made_at.get(gather.parts.inputs[0], -1) < here[at]:
            ties.setdefault(here[at], []).append(gather)
    return ties


def _gathers(graph: Graph) -> Iterable[_Gather]:
    makers = {v: node for node in graph.nodes for v in node.outputs}
    first: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        for v in node.inputs:
            first.setdefault(v, i)
    for node in graph.nodes:
        annotation = annotation_of(node)
        if annotation is None or annotation.kind not in _ON_THE_WAY or not annotation.args:
            continue
        way, maker = [node], makers.get(node.inputs[0])
        while maker is not None and _is_on_the_way(maker):
            way.append(maker)
            maker = makers.get(maker.inputs[0])
        start = None if maker is None else annotation_of(maker)
        if maker is None or start is None or start.kind != PARTS or node.outputs[0] not in first:
            continue
        if [step for step in way if _is_whole(step, start)] == [node]:
            yield _Gather(maker, tuple(reversed(way)), first[node.outputs[0]])


def _is_on_the_way(node: Node) -> bool:
    annotation = annotation_of(node)
    return (
        node.op is aten._to_copy.default if annotation is None else annotation.kind in _ON_THE_WAY
    )


def _is_whole(node: Node, parts: Annotation) -> bool:
    annotation = annotation_of(node)
    if annotation is None or not annotation.args:
        return False
    return annotation.args != parts.args[:4]


def _rewired(graph: Graph, ties: dict[int, list[_Gather]]) -> Graph:
    """The graph in which barriers stand at these places, and gathers before their first readers."""
    fresh = 1 + max(v for node in graph.nodes for v in node.outputs)
    nodes: list[Node] = []
    there: set[int] = set()
    wholes = {g.way[-1].outputs[0] for tied in ties.values() for g in tied}
    # By the position of their first reader, with what they are gathered from.
    waiting: dict[int, list[tuple[_Gather, int]]] = {}
    behind: dict[int, int] = {}  # what is read behind a barrier is what the barrier gives
    for i, node in enumerate(graph.nodes):
        if any(v in behind for v in node.inputs):
            node = replace(node, inputs=tuple([behind.get(v, v) for v in node.inputs]))  # noqa: PLW2901
        for gather, value in waiting.pop(i, ()):
            for step in gather.way:
                last = step is gather.way[-1]
                out = step.outputs[0] if last else fresh
                fresh += not last
                nodes.append(replace(step, inputs=(value,), outputs=(out,)))
                value = out  # noqa: PLW2901
        if node.outputs and (node.outputs[0] in wholes or node.outputs[0] in there):
            continue
        there.update(node.outputs)
        tied = ties.get(i)
        if tied is None:
            nodes.append(node)
            continue
        parts = list({g.parts.outputs[0]: g.parts for g in tied}.values())
        for of in parts:
            if of.outputs[0] not in there:
                there.add(of.outputs[0])
                nodes.append(of)
        made = {of.outputs[0]: fresh + n for n, of in enumerate(parts)}
        fresh += len(parts)
        nodes.append(_barrier(node, parts, tuple(made.values())))
        behind[graph.nodes[i].inputs[0]] = node.outputs[0]
        for gather in tied:
            value = made[gather.parts.outputs[0]]
            waiting.setdefault(gather.reader, []).append((gather, value))
    return replace(graph, nodes=tuple(nodes))


def _barrier(here: Node, parts: Sequence[Node], outputs: tuple[int, ...]) -> Node:
    specs = (here.signature.outs[0], *[of.signature.outs[0] for of in parts])
    slots = tuple(map(Slot, range(len(specs))))
    signature = intern(_TIED, slots, {}, specs, specs, returns="list")
    inputs = (here.inputs[0], *[of.outputs[0] for of in parts])
    return Node(signature, inputs, (here.outputs[0], *outputs), line=here.line)


def _without_unread(graph: Graph, before: Graph) -> Graph:
    """The graph without what only gathers have read that are now made of other values."""
    was_read = {v for node in before.nodes for v in node.inputs} | set(before.outputs)
    read = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if read.isdisjoint(node.outputs) and not was_read.isdisjoint(node.outputs):
            continue
        kept.append(node)
        read.update(node.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))
