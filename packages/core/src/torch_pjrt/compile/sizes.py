"""What a program may need, by its graph alone: whether it is worth asking whether there is room for it."""

from __future__ import annotations

from torch_pjrt.graph.graph import Graph

# A rule may need so many times what its node reads and makes: scores of attention, patches of a convolution.
_AT_MOST_TIMES = 64


def may_need(graph: Graph) -> int:
    """Bytes that a program of this graph hardly exceeds."""
    return _AT_MOST_TIMES * _touched(graph)


def _touched(graph: Graph) -> int:
    total = 0
    for node in graph.nodes:
        signature = node.signature
        if signature.expansion is not None:
            total += _touched(signature.expansion)
        for spec in (*signature.specs, *signature.outs):
            total += spec.numel * spec.dtype.itemsize
    return total
