"""Replace a node whose operator has no rule by the simpler nodes that PyTorch decomposes it into.

before  v0 = addcmul_like(i0)      after  v1 = mul(i0, i0)
        return v0                         v2 = add(v1, i0)
                                          return v2
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_pjrt.graph.graph import Draw, Graph, Node
from torch_pjrt.graph.signature import GraphOp
from torch_pjrt.passes.runner import Stage


@dataclass(frozen=True, slots=True)
class Expand:
    """Inlines `signature.expansion`, and the expansions inside it, under fresh names.

    What a `GraphOp` stands for has lines of its own and may draw random numbers, from the node's draw on.
    """

    name: str = "expand"
    stage: Stage = Stage.EXPAND

    def __call__(self, graph: Graph) -> Graph:
        if all(node.signature.expansion is None for node in graph.nodes):
            return graph
        fresh = 1 + max((v for n in graph.nodes for v in n.outputs), default=-1)
        nodes: list[Node] = []
        names: dict[int, int] = {}
        for node in graph.nodes:
            inputs = tuple(names.get(v, v) for v in node.inputs)
            expansion = node.signature.expansion
            if expansion is None:
                nodes.append(replace(node, inputs=inputs))
                continue
            is_graph = isinstance(node.op, GraphOp)
            expansion = self(expansion)
            inner = {-i - 1: v for i, v in enumerate(inputs)}
            for inner_node in expansion.nodes:
                renamed = tuple(range(fresh, fresh + len(inner_node.outputs)))
                fresh += len(renamed)
                inner_inputs = tuple(inner[v] for v in inner_node.inputs)
                inner.update(zip(inner_node.outputs, renamed, strict=True))
                nodes.append(
                    replace(
                        inner_node,
                        inputs=inner_inputs,
                        outputs=renamed,
                        line=(inner_node.line if is_graph else None) or node.line,
                        draw=_shifted(inner_node.draw, node.draw),
                    )
                )
            names.update(zip(node.outputs, (inner[v] for v in expansion.outputs), strict=True))
        outputs = tuple(names.get(v, v) for v in graph.outputs)
        return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _shifted(inner: Draw | None, outer: Draw | None) -> Draw | None:
    if inner is None or outer is None:
        return inner
    return Draw(outer.seeding, outer.index + inner.index)
