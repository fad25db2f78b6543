"""Drop the nodes whose results nothing reads.

before  v0 = ones()        after  v0 = ones()
        v1 = sin(v0)              v2 = cos(v0)
        v2 = cos(v0)              return v2
        return v2
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.passes.runner import Stage


@dataclass(frozen=True, slots=True)
class DropUnused:
    """Keeps the outputs and what they are made of, in order. Inputs stay, read or not."""

    name: str = "drop-unused"
    stage: Stage = Stage.CLEAN

    def __call__(self, graph: Graph) -> Graph:
        wanted = set(graph.outputs)
        kept: list[Node] = []
        for node in reversed(graph.nodes):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return replace(graph, nodes=tuple(reversed(kept)))
