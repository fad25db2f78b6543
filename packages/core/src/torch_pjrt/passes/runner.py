"""Passes: graph -> graph, run in order of stage, the graph verified after each."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch

from torch_pjrt.errors import DuplicatePass, InvalidGraph
from torch_pjrt.graph.graph import Graph
from torch_pjrt.graph.tensor_spec import TensorSpec


class Stage(enum.IntEnum):
    """When a pass runs. Within a stage the core's come first, then plugins' by plugin name.

    >>> Stage.EXPAND < Stage.REWRITE < Stage.CLEAN < Stage.ROLL
    True
    """

    EXPAND = 0  # operators become simpler ones
    REWRITE = 1  # a pattern becomes a better one
    CLEAN = 2  # what is equal is merged, what is unread goes
    ROLL = 3  # what repeats becomes a loop


@runtime_checkable
class Pass(Protocol):
    """A pure function of a graph, with a name and a stage. A dataclass whose fields are options.

    >>> class DropNothing:
    ...     name, stage = "drop-nothing", Stage.CLEAN
    ...
    ...     def __call__(self, graph):
    ...         return graph
    >>> isinstance(DropNothing(), Pass)
    True
    """

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
    """The graph after all passes. A pass that breaks it is named in an `InvalidGraph`.

    What a pass raises of itself comes through, with a note that names the pass.

        >>> from torch_pjrt.testing.graphs import parse
        >>> class Nothing:
        ...     name, stage = "nothing", Stage.REWRITE
        ...
        ...     def __call__(self, graph):
        ...         return graph
        >>> before = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.sin.default(i0)
        ...     return v0''')
        >>> run_passes([Nothing()], before) == before
        True
    """
    graph.verify(after="the tape")
    for p in passes:
        try:
            after = p(graph)
        except Exception as error:
            error.add_note(f"raised by the pass `{p.name}` of torch-pjrt")
            raise
        graph = _kept(graph, after, p.name)
    return graph


def _kept(before: Graph, after: Any, name: str) -> Graph:
    """`after`, verified: well formed, each node fed what it takes, inputs and outputs as before."""
    if not isinstance(after, Graph):
        raise InvalidGraph(f"The pass `{name}` returned no graph.", saw=f"{type(after).__name__}")
    after.verify(after=name)
    specs = after.specs()
    for node in after.nodes:
        _same(
            f"The pass `{name}` feeds `{node.op}` something else than it takes.",
            (specs[value] for value in node.inputs),
            node.signature.specs,
        )
    _same(f"The pass `{name}` changed the inputs of the graph.", after.inputs, before.inputs)
    old = before.specs()
    _same(
        f"The pass `{name}` changed the outputs of the graph.",
        (specs[value] for value in after.outputs),
        (old[value] for value in before.outputs),
    )
    return after


def _same(happened: str, specs: Iterable[TensorSpec], expected: Iterable[TensorSpec]) -> None:
    """Raise where shapes or dtypes differ. Strides may: a program's values have none."""
    saw, wanted = ([(f.shape, f.dtype) for f in each] for each in (specs, expected))
    if saw != wanted:
        raise InvalidGraph(happened, saw=_looks(saw), expected=_looks(wanted))


def _looks(pairs: list[tuple[tuple[int, ...], torch.dtype]]) -> str:
    return ", ".join(f"{str(t).removeprefix('torch.')}{list(s)}" for s, t in pairs) or "none"
