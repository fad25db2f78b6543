"""Take away a relu of a relu: it changes nothing.

before  v0 = relu(i0)      after  v0 = relu(i0)
        v1 = relu(v0)             v2 = exp(v0)
        v2 = exp(v1)              return v2
        return v2
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_pjrt.graph.graph import Graph, Node
from torch_pjrt.passes import Stage
from torch_pjrt.plugin import aten

RELU = aten.relu.default


@dataclass(frozen=True, slots=True)
class MergeRelus:
    """Readers of the second one read the first."""

    name: str = "merge-relus"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        names: dict[int, int] = {}
        relus: set[int] = set()
        kept: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(names.get(v, v) for v in node.inputs)
            if node.op == RELU and inputs[0] in relus:
                names[node.outputs[0]] = inputs[0]
                continue
            if node.op == RELU:
                relus.update(node.outputs)
            kept.append(replace(node, inputs=inputs))
        outputs = tuple(names.get(v, v) for v in graph.outputs)
        return replace(graph, nodes=tuple(kept), outputs=outputs)
