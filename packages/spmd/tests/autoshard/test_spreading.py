"""A plan is found again in programs that compute the same, also where they lack something or do it twice."""

from __future__ import annotations

import torch

from torch_pjrt.extend import intern
from torch_pjrt.plugin import Graph, Node, Slot, aten, contiguous_spec
from torch_pjrt_spmd.autoshard.spreading import same_values

SPEC = contiguous_spec((8, 8), torch.float32)
RELU = intern(aten.relu.default, (Slot(0),), {}, (SPEC,), (SPEC,))
EXP = intern(aten.exp.default, (Slot(0),), {}, (SPEC,), (SPEC,))
MM = intern(aten.mm.default, (Slot(0), Slot(1)), {}, (SPEC, SPEC), (SPEC,))

# x = i0 @ i1; y = relu(x); z = y @ i2
PLANNED = Graph(
    (SPEC,) * 3, (Node(MM, (-1, -2), (0,)), Node(RELU, (0,), (1,)), Node(MM, (1, -3), (2,))), (2,)
)


def test_inputs_may_come_in_another_order() -> None:
    nodes = (Node(MM, (-3, -1), (0,)), Node(RELU, (0,), (1,)), Node(MM, (1, -2), (2,)))

    same = same_values(Graph((SPEC,) * 3, nodes, (2,)), PLANNED)

    assert same is not None
    assert [same.values[v] for v in (-3, -1, -2)] == [-1, -2, -3]
    assert same.nodes == {0: 0, 1: 1, 2: 2}


def test_part_of_the_step_is_found() -> None:
    same = same_values(Graph((SPEC,) * 2, PLANNED.nodes[:2], (1,)), PLANNED)

    assert same is not None and same.nodes == {0: 0, 1: 1}


def test_what_is_computed_again_is_the_same_value() -> None:
    again = (
        *PLANNED.nodes[:2],
        Node(MM, (-1, -2), (5,)),
        Node(RELU, (5,), (6,)),
        Node(MM, (6, -3), (7,)),
    )

    same = same_values(Graph((SPEC,) * 3, again, (7,)), PLANNED)

    assert same is not None
    assert [same.values[v] for v in (5, 6, 7)] == [0, 1, 2]


def test_other_program_is_left_alone() -> None:
    nodes = (Node(EXP, (-1,), (0,)), Node(EXP, (0,), (1,)), Node(RELU, (1,), (2,)))

    assert same_values(Graph((SPEC,), nodes, (2,)), PLANNED) is None
