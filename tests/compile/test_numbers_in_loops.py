"""A number that is an input of a program is the same one in the body of a loop, in another's, and outside."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch

from torch_pjrt import dtypes
from torch_pjrt.client.client import client
from torch_pjrt.compile.build import function_of
from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import NumberSlot, Slot, intern
from torch_pjrt.graph.tensor_spec import contiguous_spec

SPEC = contiguous_spec((3,), torch.float32)
PLACES = ("loop", "outside")


def scaled(value: int, result: int, number: Number) -> Node:
    op = torch.ops.aten.mul.Tensor
    signature = intern(
        op, (Slot(0), NumberSlot(0, number.kind)), {}, (SPEC,), (SPEC,), (number.kind,)
    )
    return Node(signature, (value,), (result,), (number,))


def looped(value: int, result: int, number: Number) -> Node:
    """Three times scaled, each iteration with what the one before gave."""
    op = LoopOp(Graph((SPEC,), (scaled(-1, 0, number),), (0,)), trip_count=3, n_carried=1, n_xs=0)
    return Node(op.signature(), (value,), (result,))


@pytest.mark.parametrize("places", list(itertools.product(PLACES, repeat=3)), ids="-".join)
@pytest.mark.parametrize("kind", [int, float])
def test_number_is_the_same_wherever_it_is_met_first(kind: type, places: tuple[str, ...]) -> None:
    number = Number(kind, 0)
    made = {"loop": looped, "outside": scaled}
    nodes = [made[place](i - 1, i, number) for i, place in enumerate(places)]
    graph = Graph((SPEC,), tuple(nodes), (len(places) - 1,)).verify("the test")
    plan = SimpleNamespace(
        ints=np.array([0] * (kind is int)), floats=np.array([0] * (kind is float))
    )
    x, two = np.ones(3, np.float32), np.array([kind(2)])

    with dtypes.x64():
        function = function_of(graph, client().lowerings, plan, n_seedings=0)  # type: ignore[arg-type]
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a is two) for a in (x, two)]
        [result] = jax.jit(function).lower(*shapes).compile()(x, two)

    assert result.tolist() == [2.0 ** (places.count("outside") + 3 * places.count("loop"))] * 3
