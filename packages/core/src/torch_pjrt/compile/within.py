"""A graph as a part of what JAX traces: bodies of control flow, operators that stand for graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from torch_pjrt.client.client import client
from torch_pjrt.compile.build import evaluate
from torch_pjrt.compile.loops import Scope
from torch_pjrt.compile.precision import in_force
from torch_pjrt.graph.graph import Draw, Graph, Number
from torch_pjrt.passes.runner import run_passes

Array = jax.Array


def traced(
    graph: Graph, arrays: Sequence[Array], key: Callable[[Draw], Array] | None = None
) -> tuple[Array, ...]:
    """The outputs of a graph as a part of the function that JAX traces now: of a body of control flow, say.

    arrays   of the graph's inputs, in order.
    key      the PRNG key (threefry) of a draw; None for a graph that draws nothing.

    The device's passes run first. Python numbers in the graph must be constants.

        >>> with recorded(lambda x: x.sin() * 2, [torch.empty(3)]) as step:
        ...     graph = graph_of(step.tape, step.outputs)
        >>> jax.eval_shape(lambda x: traced(graph, [x]), jnp.zeros(3))
        (ShapeDtypeStruct(shape=(3,), dtype=float32),)
    """
    table, passes = client().lowerings, client().passes
    scope = Scope(table, in_force(), _constant, _no_numbers, key or _no_key)
    return evaluate(run_passes(passes, graph), arrays, scope)


def _constant(number: Number) -> Any:
    return number.value


def _no_numbers(numbers: Sequence[Number]) -> Any:
    raise AssertionError("numbers of a part of a program are constants")


def _no_key(draw: Draw) -> Array:
    raise AssertionError("a graph draws random numbers, and there is no key")
