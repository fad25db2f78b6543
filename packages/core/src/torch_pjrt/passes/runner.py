"""Passes: graph -> graph, run in order of stage, the graph verified after each."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from torch_pjrt.errors import DuplicatePass
from torch_pjrt.graph.graph import Graph


class Stage(enum.IntEnum):
    """When a pass runs. Within a stage, the core's come first, then plugins' in order of their names."""

    EXPAND = 0  # operators become simpler ones
    REWRITE = 1  # a pattern becomes a better one
    CLEAN = 2  # what is equal is merged, what is unread goes


@runtime_checkable
class Pass(Protocol):
    """A pure function of a graph, with a name and a stage. A dataclass whose fields are options."""

    @property
    def name(self) -> str:
        """A verb and its object: `drop-unused`. Unique among all passes of a process."""
        ...

    @property
    def stage(self) -> Stage:
        """When it runs."""
        ...

    def __call__(self, graph: Graph) -> Graph:
        """The rewritten graph; must keep the number and the order of outputs."""
        ...


def in_order(passes: Iterable[Pass]) -> list[Pass]:
    """Sorted by stage, order kept within one; two of one name are a `DuplicatePass`."""
    seen: dict[str, Pass] = {}
    for p in passes:
        if (first := seen.get(p.name)) is not None:
            raise DuplicatePass(
                f"Two passes have the name `{p.name}`.",
                saw=f"{type(first).__module__}.{type(first).__qualname__} and "
                f"{type(p).__module__}.{type(p).__qualname__}",
                hint="rename one, or forbid a plugin with TORCH_PJRT_PLUGINS",
            )
        seen[p.name] = p
    return sorted(seen.values(), key=lambda p: p.stage)


def run_passes(passes: Iterable[Pass], graph: Graph) -> Graph:
    """The graph after all passes. A pass that breaks it is named in an `InvalidGraph`."""
    graph.verify(after="the tape")
    for p in passes:
        graph = p(graph).verify(after=p.name)
    return graph
