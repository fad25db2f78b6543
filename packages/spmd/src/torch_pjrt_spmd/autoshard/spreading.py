"""A plan within programs: values of the recorded step are marked in each program that computes the same.

before  v3 = linear(i0, i1)        after  v3 = linear(i0, i1)
        v4 = relu(v3)                     v5 = annotate(v3, "data", None)
        return v4                         v4 = relu(v5)
                                          return v4
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.extend import annotation_of, intern, outline
from torch_pjrt.plugin import Graph, Node, Slot, Stage, TensorSpec
from torch_pjrt_spmd import marks
from torch_pjrt_spmd.spec import Entry

if TYPE_CHECKING:
    from torch_pjrt_spmd.mesh import Mesh

Spec = tuple[Entry, ...]

_ENOUGH = (
    0.8  # of a program's operators are the recorded step's: it is the same step, or a part of it
)
_AHEAD = 64  # operators of the recorded step that a program may lack at one place


@dataclass(frozen=True, slots=True, eq=False)
class PlannedValues:
    """How values of a recorded graph lie.

    made    values that its nodes make.
    taken   (place of a node, value) that it takes otherwise: the value, or what it is a view of, and how that
            is to lie.
    """

    graph: Graph
    made: Mapping[int, Spec]
    taken: Mapping[tuple[int, int], tuple[int, Spec]]


@dataclass(frozen=True, slots=True, eq=False)
class SpreadAsPlanned:
    """Marks the values that the plan speaks of; leaves programs alone that do something else.

    Its name says which plan it is: several may be in use, and equal ones are one.
    """

    mesh: Mesh
    values: PlannedValues
    name: str = field(init=False)
    stage: Stage = Stage.CLEAN

    def __post_init__(self) -> None:
        values = self.values
        lines = [*outline(values.graph), f"{self.mesh.written()} {values.made} {values.taken}"]
        digest = hashlib.sha256(chr(10).join(lines).encode()).hexdigest()
        object.__setattr__(self, "name", f"spread-as-planned-{digest}")

    def __repr__(self) -> str:
        """Equal in other processes for plans that are equal."""
        return f"SpreadAsPlanned({self.name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpreadAsPlanned) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __call__(self, graph: Graph) -> Graph:
        same = same_values(graph, self.values.graph)
        return graph if same is None else _Rewriting(graph, same, self.values, self.mesh).graph()


class _Rewriting:
    """A graph while it is written anew, with marks."""

    def __init__(self, graph: Graph, same: Same, planned: PlannedValues, mesh: Mesh) -> None:
        self.old, self.same, self.planned, self.mesh = graph, same, planned, mesh
        self.specs = graph.specs()
        self.fresh = count(max(self.specs, default=-1) + 1)
        self.makers = {v: node for node in graph.nodes for v in node.outputs}
        self.nodes: list[Node] = []
        self.renamed: dict[int, int] = {}  # what is made is read as it was marked
        self.known: dict[tuple[int, Spec], int] = {}
        self.copies: dict[tuple[int, int], int] = {}

    def graph(self) -> Graph:
        for i, node in enumerate(self.old.nodes):
            position = self.same.nodes.get(i)
            inputs = [self._taken(v, position) for v in node.inputs]
            self.nodes.append(replace(node, inputs=tuple(inputs)))
            for v in node.outputs if position is not None else ():
                spec = self.planned.made.get(self.same.values[v])
                if spec is not None:
                    self.renamed[v] = self._marked(v, spec)
        outputs = tuple(self.renamed.get(v, v) for v in self.old.outputs)
        return replace(self.old, nodes=tuple(self.nodes), outputs=outputs)

    def _taken(self, value: int, position: int | None) -> int:
        """What the node at a place of the recorded graph takes instead of a value."""
        plain = self.renamed.get(value, value)
        if position is None:
            return plain
        found = self.planned.taken.get((position, self.same.values.get(value, value)))
        if found is None:
            return plain
        base, spec = found
        views: list[Node] = []
        at = value
        while self.same.values.get(at) != base:
            node = self.makers.get(at)
            if node is None or len(node.inputs) != 1:
                return plain
            views.append(node)
            at = node.inputs[0]
        made = self._marked(self.renamed.get(at, at), spec)
        for node in reversed(views):
            made = self._copy(node, made)
        return made

    def _marked(self, value: int, spec: Spec) -> int:
        if (value, spec) not in self.known:
            new = self._new(self.specs[value])
            self.nodes.append(_annotation(value, new, self.specs[value], self.mesh, spec))
            self.known[value, spec] = new
        return self.known[value, spec]

    def _copy(self, node: Node, taken: int) -> int:
        """The same view of another value."""
        key = (node.outputs[0], taken)
        if key not in self.copies:
            self.copies[key] = self._new(self.specs[node.outputs[0]])
            self.nodes.append(replace(node, inputs=(taken,), outputs=(self.copies[key],)))
        return self.copies[key]

    def _new(self, spec: TensorSpec) -> int:
        name = next(self.fresh)
        self.specs[name] = spec
        return name


def _annotation(value: int, name: int, spec: TensorSpec, mesh: Mesh, how: Spec) -> Node:
    written = repr((*mesh.written(), how))
    annotate = torch.ops.torch_pjrt.annotate.default
    signature = intern(annotate, (Slot(0), marks.KIND_FORWARD, written), {}, (spec,), (spec,))
    return Node(signature, (value,), (name,))


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """What a graph has of another one: values, and nodes by their places."""

    values: Mapping[int, int]
    nodes: Mapping[int, int]


def same_values(graph: Graph, planned: Graph) -> Same | None:
    """What a graph does that a planned one does, too; None where that is not most of it.

    Nodes come in one order in both. A graph may lack some at its ends or between, have its inputs in another
    order, and compute values twice, as where layers are computed again.
    """
    positions: defaultdict[int, list[int]] = defaultdict(list)
    exact: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for i, node in enumerate(planned.nodes):
        positions[node.signature.number].append(i)
        exact.setdefault((node.signature.number, node.inputs), []).append(i)
    values: dict[int, int] = {}
    taken: dict[int, int] = {}
    nodes: dict[int, int] = {}
    n_marks = at = 0
    for i, node in enumerate(graph.nodes):
        if annotation_of(node) is not None and node.signature.number not in positions:
            n_marks += 1
            if node.inputs[0] in values:
                values[node.outputs[0]] = values[node.inputs[0]]
            continue
        found = _position_of(node, at, planned.nodes, positions, exact, values, taken)
        if found is None:
            continue
        other = planned.nodes[found]
        nodes[i] = found
        at = max(at, found + 1)
        for u, v in zip(
            (*node.inputs, *node.outputs), (*other.inputs, *other.outputs), strict=True
        ):
            values[u] = v
            taken.setdefault(v, u)
    n = len(graph.nodes) - n_marks
    return Same(values, nodes) if nodes and len(nodes) >= _ENOUGH * n else None


def _position_of(
    node: Node,
    at: int,
    planned: Sequence[Node],
    positions: Mapping[int, Sequence[int]],
    exact: Mapping[tuple[int, tuple[int, ...]], Sequence[int]],
    values: Mapping[int, int],
    taken: Mapping[int, int],
) -> int | None:
    number: Any = node.signature.number
    mapped: list[Any] = [values.get(v) for v in node.inputs]
    if None not in mapped:
        known = exact.get((number, tuple(mapped)), ())
        return next((i for i in known if i >= at), known[-1]) if known else None
    candidates = positions.get(number, ())
    for i in candidates[bisect_left(candidates, at) :]:
        if i >= at + _AHEAD:
            return None
        if all(
            v == m or (m is None and v not in taken)
            for m, v in zip(mapped, planned[i].inputs, strict=True)
        ):
            return i
    return None
