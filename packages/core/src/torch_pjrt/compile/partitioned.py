"""Where the results of a program lie, where a package spreads arrays over several chips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax.sharding import Mesh, NamedSharding

from torch_pjrt.caches import Cache
from torch_pjrt.client import partition
from torch_pjrt.client.partition import Output
from torch_pjrt.client.placing import put_together
from torch_pjrt.client.shardings import Sharding, stack_of
from torch_pjrt.graph.graph import graph_of

if TYPE_CHECKING:
    from torch_pjrt.graph.boundary import Boundary
    from torch_pjrt.graph.graph import Graph
    from torch_pjrt.graph.tape import Tape

Given = Sequence[Sharding | None]


# Where the inputs of a tape go if all are on one chip, by all of a program's key but the shardings.
_asked: Cache[Any, Sharding | None] = Cache("shardings that programs ask for", most=4096)


def spread_as_asked(tape: Tape, live: Sequence[int], key: Any) -> tuple[Sharding, ...]:
    """Where the tape's inputs lie, moved to where its annotations ask for. Without a partitioner: nothing.

    key   what else than shardings its program depends on.
    """
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return ()
    shardings = put_together(tape.inputs)
    if not shardings or any(len(s.device_set) > 1 for s in shardings):
        return shardings
    if key not in _asked:
        _asked[key] = partitioner.asked_for(graph_of(tape, live))
    target = _asked[key]
    return put_together(tape.inputs, target) if target is not None else shardings


def spread_once(tape: Tape, graph: Graph) -> Sharding | None:
    """As `spread_as_asked`, for a program that is in no cache: where its results may go, all on each chip."""
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return None
    shardings = put_together(tape.inputs)
    target = partitioner.common(shardings) or partitioner.asked_for(graph)
    if target is not None:
        put_together(tape.inputs, target)
    return target


def of_outputs(
    graph: Graph,
    tape: Tape,
    outputs: Sequence[int],
    reusable: Mapping[int, int],
    inputs: Sequence[Sharding],
) -> Given | None:
    """The shardings of these values of the tape, in order; None: all are on one chip.

    `reusable` says which inputs (negative numbers) it takes, and which value gets the memory of each.
    """
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return None
    takes = {number: origin for origin, number in reusable.items()}
    found = []
    for number in outputs:
        value = tape.values[number] if number >= 0 else tape.inputs[-number - 1]
        origin = takes.get(number, value.origin) if number >= 0 else number
        found.append(Output(value, None if origin is None else inputs[-origin - 1]))
    return partitioner.of_outputs(graph, tape.inputs, inputs, found)


def aliased(
    reusable: Mapping[int, int], inputs: Sequence[Sharding], given: Given | None
) -> dict[int, int]:
    """Inputs whose memory a result takes, by their positions, and the result's: those that lie alike."""
    pairs = {-origin - 1: position for position, origin in enumerate(reusable)}
    if given is None:
        return pairs
    return {i: position for i, position in pairs.items() if given[position] == inputs[i]}


def through(boundary: Boundary, given: Given | None) -> Given | None:
    """The shardings of what the program gives as it gives it, some as stacks."""
    if given is None:
        return None
    return tuple(
        [
            given[position] if isinstance(position, int) else _of_all([given[i] for i in position])
            for position in boundary.outputs
        ]
    )


def _of_all(given: Given) -> Sharding | None:
    first = given[0]
    return stack_of(first) if first is not None and all(g == first for g in given) else None


def chips_of(inputs: Sequence[Sharding], given: Given | None) -> Sequence[Any]:
    """The chips on which a program runs whose inputs and results lie like this; none: on the client's."""
    for sharding in (*inputs, *(given or ())):
        if isinstance(sharding, NamedSharding) and len(sharding.device_set) > 1:
            assert isinstance(sharding.mesh, Mesh)
            return list(sharding.mesh.devices.flat)
    return ()
