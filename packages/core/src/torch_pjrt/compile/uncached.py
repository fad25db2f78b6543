"""Programs that are looked at, or run beside the real one: they are in no cache, and donate nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_pjrt import dtypes
from torch_pjrt.client import partition
from torch_pjrt.client.client import client
from torch_pjrt.compile.build import function_of
from torch_pjrt.compile.numbers import NumberPlan
from torch_pjrt.compile.partitioned import spread_once
from torch_pjrt.compile.programs import shapes_of_arguments
from torch_pjrt.graph.graph import Graph, graph_of, with_inputs
from torch_pjrt.graph.tape import Tape
from torch_pjrt.passes.runner import run_passes

Function = Callable[..., Any]


def lowered_uncached(
    tape: Tape,
    outputs: Sequence[int],
    plan: NumberPlan,
    wrapped: Callable[[Function], Function] | None = None,
) -> Any:
    """The `jax.stages.Lowered` of what the tape has recorded, `outputs` being its results, in order.

    On several chips, where its inputs are moved to the others', each chip has the whole of its results.

    `wrapped` makes another function of the one that gives those, which takes the same arguments.
    """
    target = spread_once(tape, graph_of(tape, outputs))
    graph = passed(tape, outputs, plan)
    function = function_of(graph, client().lowerings, plan, len(tape.draws))
    if wrapped is not None:
        function = wrapped(function)
    with dtypes.x64():
        return client().lower(function, shapes_of_arguments(tape, plan), (), target)


def passed(tape: Tape, outputs: Sequence[int], plan: NumberPlan) -> Graph:
    """The graph that the tape recorded, after the passes."""
    arrays = [value.array for value in tape.inputs]
    where = [array.sharding for array in arrays if array is not None]
    passes = partition.with_own(client().passes, where)
    return run_passes(passes, with_inputs(graph_of(tape, outputs), plan.changing))
