"""A graph that is one operator takes the place of its node, with its lines and the node's random draws."""

from __future__ import annotations

import torch

from torch_pjrt.graph.graph import Draw, Graph, Node
from torch_pjrt.graph.line import Line
from torch_pjrt.graph.signature import GraphOp, Slot, intern
from torch_pjrt.graph.tensor_spec import contiguous_spec
from torch_pjrt.passes import Expand

SPEC = contiguous_spec((3,), torch.float32)
RAND = intern(torch.ops.aten.rand_like.default, (Slot(0),), {}, (SPEC,), (SPEC,), random=True)
INNER = Graph((SPEC,), (Node(RAND, (-1,), (0,), draw=Draw(0, 2), line=Line("a.py", 3, "f")),), (0,))
WHOLE = intern(
    GraphOp("compiled", INNER, 3),
    (Slot(0),),
    {},
    (SPEC,),
    (SPEC,),
    random=True,
    expand=lambda _: INNER,
)


def test_its_draws_are_counted_from_those_of_the_node() -> None:
    node = Node(WHOLE, (-1,), (0,), draw=Draw(1, 5), line=Line("b.py", 7, "g"))

    [expanded] = Expand()(Graph((SPEC,), (node,), (0,))).nodes

    assert expanded.draw == Draw(1, 7)


def test_its_nodes_keep_their_lines() -> None:
    node = Node(WHOLE, (-1,), (0,), draw=Draw(0, 0), line=Line("b.py", 7, "g"))

    [expanded] = Expand()(Graph((SPEC,), (node,), (0,))).nodes

    assert str(expanded.line) == "a.py:3"
