"""Merge nodes that compute the same thing from the same values.

before  v0 = exp(i0)       after  v0 = exp(i0)
        v1 = exp(i0)              v2 = add(v0, v0)
        v2 = add(v0, v1)          return v2
        return v2
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.passes.runner import Stage


@dataclass(frozen=True, slots=True)
class MergeEqual:
    """Equal means: one signature, one list of inputs, the same constants, the same random draw.

    Floats are equal if their bits are; numbers that are inputs of the program if one input.
    """

    name: str = "merge-equal"
    stage: Stage = Stage.CLEAN

    def __call__(self, graph: Graph) -> Graph:
        names: dict[int, int] = {}
        first: dict[object, Node] = {}
        kept: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(names.get(v, v) for v in node.inputs)
            numbers = tuple(map(number_key, node.numbers))
            key = (node.signature.number, inputs, numbers, node.draw)
            twin = first.setdefault(key, node)
            if twin is node:
                kept.append(node if inputs == node.inputs else replace(node, inputs=inputs))
            else:
                names.update(zip(node.outputs, twin.outputs, strict=True))
        outputs = tuple(names.get(v, v) for v in graph.outputs)
        return replace(graph, nodes=tuple(kept), outputs=outputs)


def number_key(number: Number) -> object:
    """Equal for numbers that are the same whenever the program runs.

    >>> from torch_pjrt.plugin import Number
    >>> number_key(Number(int, 0, 3)) == number_key(Number(int, 5, 3))  # constants
    True
    >>> number_key(Number(int, 0)) == number_key(Number(int, 5))  # inputs
    False
    """
    if number.value is None:
        return number.kind, number.index, None
    return number.kind, _bits(number.value)


def _bits(value: int | float) -> object:
    return value.hex() if isinstance(value, float) else value
