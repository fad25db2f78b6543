"""Gradients of what is taken by an index, `x[:, 3]`, as operators that are the same for each index.

before  v0 = select_backward(g, [2, 12], 1, 3)      after  v1 = added_at(x, g, 3)
        v1 = add(x, v0)

The index becomes a number of the call, so that a backward which goes through the positions of a sequence
repeats. A sum with such a gradient reads and writes that index alone: in a loop it would else go over all
indices in each iteration.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.graph.signature import ADDED_AT, NumberSlot, Slot, intern
from torch_pjrt.overloads import aten

_SELECT = aten.select_backward.default
_ADD = aten.add.Tensor


def with_positions_as_numbers(graph: Graph, fewest: int) -> Graph:
    """The graph with these indices as numbers, where at least `fewest` gradients of one kind have one."""
    found = {v: node for node in graph.nodes if _is_placed(node) for v in node.outputs}
    kinds = Counter(_kind(node) for node in found.values())
    found = {v: node for v, node in found.items() if kinds[_kind(node)] >= fewest}
    if not found:
        return graph
    readers = Counter(v for node in graph.nodes for v in node.inputs)
    readers.update(graph.outputs)
    alone = {v for v in found if readers[v] == 1}
    nodes: list[Node] = []
    gone: set[int] = set()
    for node in graph.nodes:
        term = _term(node, found, alone) if node.op is _ADD else None
        if term is not None:
            gone.add(term)
            nodes.append(_added(node, found[term]))
        else:
            nodes.append(_numbered(node) if node.outputs and node.outputs[0] in found else node)
    kept = [node for node in nodes if not node.outputs or node.outputs[0] not in gone]
    return replace(graph, nodes=tuple(kept))


def _is_placed(node: Node) -> bool:
    return (
        node.op is _SELECT
        and len(node.signature.args) == 4
        and isinstance(node.signature.args[3], int)
    )


def _kind(node: Node) -> Any:
    _, sizes, dim, _ = node.signature.args
    return node.signature.specs, tuple(sizes), dim


def _position(node: Node) -> tuple[int, int]:
    """The dim, and the index there, both from 0 on."""
    _, sizes, dim, position = node.signature.args
    dim %= len(sizes)
    return dim, position % sizes[dim]


def _numbered(node: Node) -> Node:
    """The gradient with its index as a number."""
    signature = node.signature
    dim, position = _position(node)
    args = (*signature.args[:2], dim, NumberSlot(0, int))
    like = intern(_SELECT, args, {}, signature.specs, signature.outs, (int,))
    return replace(node, signature=like, numbers=(Number(int, 0, position),))


def _term(node: Node, found: dict[int, Node], alone: set[int]) -> int | None:
    """Which term of the sum is a gradient that nothing else reads; of two the later one."""
    signature = node.signature
    plain = signature.args == (Slot(0), Slot(1)) and len(set(node.inputs)) == 2
    (out, *_), (first, *rest) = signature.outs, signature.specs
    same = rest and out.shape == first.shape == rest[0].shape
    same = same and out.dtype == first.dtype == rest[0].dtype != torch.complex32
    if not plain or not same or any(n.value != 1 or n.kind is not int for n in node.numbers):
        return None
    terms = [v for v in node.inputs if v in alone]
    return max(terms, default=None)


def _added(node: Node, gradient: Node) -> Node:
    """The sum as an operator on one index of its other term."""
    (other,) = (v for v in node.inputs if v not in gradient.outputs)
    base = node.signature.specs[node.inputs.index(other)]
    dim, position = _position(gradient)
    signature = intern(
        ADDED_AT,
        (Slot(0), Slot(1), dim, NumberSlot(0, int)),
        {},
        (base, gradient.signature.specs[0]),
        node.signature.outs,
        (int,),
    )
    inputs = other, gradient.inputs[0]
    return replace(node, signature=signature, inputs=inputs, numbers=(Number(int, 0, position),))
