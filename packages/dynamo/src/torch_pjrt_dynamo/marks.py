"""Marks on the operators in bodies of control flow: by them backward knows which of forward's draws is which.

PyTorch's backward of `cond` and `map` traces the body again, and nothing says which operator of the new graph
was which of the old one. So each call in a body that Dynamo traced says where it stands, and PyTorch's
tracer writes that beside the operators that the call becomes.

A mark is a path: the position of the control flow in the whole, of one within that, ..., and of the call in
the body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

# PyTorch hands on what is under "custom" beside a node to the nodes that it is traced as.
_CUSTOM, _MARK = "custom", "torch_pjrt_draw"
CONTROL_FLOW = frozenset(("cond", "while_loop", "while_loop_stack_output", "scan", "map_impl"))

Path = tuple[int, ...]


def put_marks(module: GraphModule) -> None:
    """Mark the calls in all bodies of what Dynamo traced, in place."""
    uses = Counter(id(body) for body in _all_bodies(module))
    _mark(module, (), count(), uses)


def mark_of(node: Node) -> Path | None:
    """The mark beside an operator; None where there is none."""
    return (node.meta.get(_CUSTOM) or {}).get(_MARK)


def is_control(node: Node) -> bool:
    """Whether the node is control flow, whose bodies run some other number of times than once."""
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in CONTROL_FLOW


def bodies_of(module: GraphModule, node: Node) -> list[GraphModule]:
    """The graphs that an operator is given."""
    given = (getattr(module, str(n.target)) for n in node.all_input_nodes if n.op == "get_attr")
    return [body for body in given if isinstance(body, GraphModule)]


def _all_bodies(module: GraphModule) -> Iterator[GraphModule]:
    for node in module.graph.nodes:
        for body in bodies_of(module, node) if node.op == "call_function" else ():
            yield body
            yield from _all_bodies(body)


def _mark(module: GraphModule, path: Path, positions: Iterator[int], uses: Counter[int]) -> None:
    for node in list(module.graph.nodes):
        bodies = bodies_of(module, node) if node.op == "call_function" else []
        if bodies:
            its_path, its_positions = (
                ((*path, next(positions)), count()) if is_control(node) else (path, positions)
            )
            for body in bodies:
                # A body of two calls would give both the same marks.
                if uses[id(body)] == 1:
                    _mark(body, its_path, its_positions, uses)
        elif path and node.op in ("call_function", "call_method", "call_module"):
            mark = (*path, next(positions))
            node.meta[_CUSTOM] = {**(node.meta.get(_CUSTOM) or {}), _MARK: mark}
            _insert(module, node, mark)
        elif path and node.op == "output":
            _insert(module, node, None)
    if path:
        module.recompile()


def _insert(module: GraphModule, node: Node, mark: Path | None) -> None:
    with module.graph.inserting_before(node):
        module.graph.call_function(_say, (mark,))


def _say(mark: Any) -> None:
    """Called where PyTorch runs a body to trace it: what it traces from now on gets the mark."""
    of_now = getattr(torch.fx.traceback, "get_current_meta", dict)()  # pyright: ignore[reportAttributeAccessIssue]
    of_now[_CUSTOM] = {**(of_now.get(_CUSTOM) or {}), _MARK: mark and tuple(mark)}
