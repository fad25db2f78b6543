"""Loops of a graph as JAX's: `lax.scan` over the body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt.client.shardings import element_of
from torch_pjrt.graph.graph import Draw, Graph, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.lowering.host_memory import Sharding, as_asked, is_on_host, on_chips
from torch_pjrt.lowering.table import LoweringTable

Array = jax.Array


@dataclass(frozen=True, slots=True)
class Scope:
    """What the nodes of a graph, and of the bodies in it, are computed with.

    number    a Python number of a call, or the weakly typed tracer that stands for it.
    numbers   several of one kind, as a weakly typed array.
    key       the PRNG key of a draw.
    to_host   of values that are results and go to the host's memory how they lie there.
    """

    table: LoweringTable
    precision: str
    number: Callable[[Number], Any]
    numbers: Callable[[Sequence[Number]], Array]
    key: Callable[[Draw], Array]
    to_host: Mapping[int, Sharding] = field(default_factory=dict)


Evaluate = Callable[[Graph, Sequence[Array], Scope], tuple[Array, ...]]


def run_loop(
    op: LoopOp,
    inputs: Sequence[Array],
    scope: Scope,
    evaluate: Evaluate,
    to_host: Sequence[Sharding | None] = (),
) -> Sequence[Array]:
    """The loop's results; `evaluate` gives those of one iteration.

    Stacks in the host's memory stay there: each iteration brings its elements to the chip, and takes its
    results there that are to go there (`to_host`, how each of the results lies there, or None).
    """
    n_before = len(inputs) - op.n_xs
    carried, same, stacks = (
        on_chips(inputs[: op.n_carried]),
        on_chips(inputs[op.n_carried : n_before]),
        inputs[n_before:],
    )
    way = -1 if op.reverse else 1
    draws = [np.array([(d.seeding, d.index) for d in each[::way]], np.int64) for each in op.draws]
    numbers = [scope.numbers(each[::way]) for each in op.numbers]

    def iteration(carry: Sequence[Array], one: tuple[Sequence[Array], ...]) -> Any:
        elements, its_draws, its_numbers = one

        def number(n: Number) -> Any:
            of_turn = n.value is None and n.index < 0
            return its_numbers[-1 - n.index] if of_turn else scope.number(n)

        def key(draw: Draw) -> Array:
            seeding, index = its_draws[draw.index]
            return scope.key(Draw(seeding, index))  # type: ignore[arg-type]

        results = evaluate(
            op.body, (*carry, *same, *elements), replace(scope, number=number, key=key)
        )
        made = [
            as_asked(x, None if how is None else element_of(how))
            for x, how in zip(results, to_host or [None] * len(results), strict=True)
        ]
        return tuple(on_chips(results[: op.n_carried])), tuple(made[op.n_carried :])

    each = (tuple(stacks), draws, numbers)
    if op.vectorized and not any(map(is_on_host, stacks)):
        return jax.vmap(lambda *one: iteration((), one)[1], axis_size=op.trip_count)(*each)
    final, collected = lax.scan(
        iteration,
        tuple(carried),
        each,  # pyright: ignore[reportArgumentType]
        length=op.trip_count,
        reverse=op.reverse,
    )
    return (*final, *collected)
