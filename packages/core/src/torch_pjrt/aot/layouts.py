"""Where the inputs and results lie of a program that is compiled ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from torch_pjrt.aot.recording import RecordedStep
from torch_pjrt.client import partition
from torch_pjrt.client.shardings import Sharding
from torch_pjrt.compile.partitioned import Given, chips_of, of_outputs
from torch_pjrt.errors import SettingError
from torch_pjrt.graph.graph import Graph

_AXIS = "data"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things lie.

    chips     those that the program runs on.
    inputs    of each input of the tape, in order. whole: a copy on each chip.
    results   of each result of the tape's graph, in order; None: all are on the one chip.
    """

    chips: Sequence[Any]
    inputs: Sequence[Sharding]
    whole: Sharding
    results: Given | None


def layout_of(ahead: RecordedStep, graph: Graph, chips: Sequence[Any], *, sharded: bool) -> Layout:
    """Where everything lies: as marked, if anything is; over all chips, if `sharded`; else on the first.

    graph   what the tape recorded. Raises `SettingError` for a function that has marks and is `sharded`.
    """
    marked = _as_marked(ahead, graph)
    if marked is None:
        return _over(ahead, chips) if sharded else _on(ahead, chips[0])
    if sharded:
        raise SettingError(
            "`sharded=True` spreads the inputs of a function without marks; tensors of this one are marked.",
            hint="leave `sharded` out: all that is marked lies as it was marked",
        )
    return marked


def _on(ahead: RecordedStep, chip: Any) -> Layout:
    one = jax.sharding.SingleDeviceSharding(chip)
    return Layout((chip,), [one] * len(ahead.tape.inputs), one, None)


def _over(ahead: RecordedStep, chips: Sequence[Any]) -> Layout:
    """Arguments spread over all chips by their first dim, all else whole on each."""
    mesh = jax.sharding.Mesh(np.array(chips), (_AXIS,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    parts = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(_AXIS))
    inputs = [
        parts if i in ahead.given and value.spec.shape else whole
        for i, value in enumerate(ahead.tape.inputs)
    ]
    taken = {number: origin for origin, number in ahead.reusable.items()}
    results = [inputs[-taken[n] - 1] if n in taken else None for n in ahead.outputs]
    return Layout(chips, inputs, whole, results)


def _as_marked(ahead: RecordedStep, graph: Graph) -> Layout | None:
    """As a package's partitioner says; None without one, or where it has nothing to say."""
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return None
    known = [
        partitioner.of_tensor(ahead.stood_for[i])
        if i in ahead.stood_for
        else ahead.pinned.get(id(value))
        for i, value in enumerate(ahead.tape.inputs)
    ]
    spread = [how for how in known if how is not None]
    whole = partitioner.common(spread) or partitioner.asked_for(graph) or partitioner.default()
    if whole is None:
        return None
    inputs = [how or whole for how in known]
    results = of_outputs(graph, ahead.tape, ahead.outputs, ahead.reusable, inputs)
    return Layout(chips_of(inputs, results), inputs, whole, results)
