"""Take away a relu of a relu: it changes nothing.

before  v0 = relu(i0)      after  v0 = relu(i0)
        v1 = relu(v0)             v2 = exp(v0)
        v2 = exp(v1)              return v2
        return v2
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_pjrt.plugin import Builder, Graph, Node, Ref, Stage, aten, rewritten

RELU = aten.relu.default


@dataclass(frozen=True, slots=True)
class MergeRelus:
    """Readers of the second one read the first."""

    name: str = "merge-relus"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        relus: set[int] = set()

        def rewrite(node: Node, build: Builder) -> Ref | None:
            if node.op != RELU:
                return None
            if build.inputs[0].name in relus:
                return build.inputs[0]
            relus.update(node.outputs)
            return None

        return rewritten(graph, rewrite)
