"""Regions: recorded graphs that each chip computes on its own parts, as nodes of a program.

v0 = spmd.shard_map(i0, i1)    i0 cut along dim 0, i1 whole; in it a graph of parts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.extend import FunctionOp, intern, number_key, record, traced, value_of, wrap
from torch_pjrt.plugin import Graph, Slot, contiguous_spec
from torch_pjrt_spmd import marks
from torch_pjrt_spmd.cut import Cut, Entries
from torch_pjrt_spmd.spec import partition_spec

if TYPE_CHECKING:
    import jax

    from torch_pjrt.plugin import Node


@dataclass(frozen=True)
class Region:
    """A graph of parts, how its inputs are cut, and how its results are put together.

    A part without dims that has an entry all the same is one of as many as there are chips.
    """

    graph: Graph
    cut: Cut
    ins: tuple[Entries, ...]
    outs: tuple[Entries, ...]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Record its node: the results are new tensors, pending."""
        marks.go_to(whole_on(self.cut.mesh.written()))
        values = [value_of(x.detach()) for x in tensors]
        specs = tuple(contiguous_spec(v.spec.shape, v.spec.dtype) for v in values)
        shapes = self.graph.specs()
        outs = tuple(
            contiguous_spec(self.cut.whole(_with_dim(shapes[n].shape, e), e), shapes[n].dtype)
            for n, e in zip(self.graph.outputs, self.outs, strict=True)
        )
        slots = tuple(map(Slot, range(len(values))))
        signature = intern(self._op(), slots, {}, specs, outs, returns="list")
        return [wrap(v, s) for v, s in zip(record(signature, values, []), outs, strict=True)]

    def _op(self) -> FunctionOp:
        # Graphs are equal though a number of one is -0.0 and of the other 0.0.
        numbers = tuple(number_key(n) for node in self.graph.nodes for n in node.numbers)
        return _op_of(self, numbers)


@lru_cache(maxsize=4096)
def _op_of(region: Region, numbers: object) -> FunctionOp:
    """The one operator of equal regions, so that equal steps are one program."""
    of = (region.graph, region.cut.mesh.written(), region.cut.names, region.ins, region.outs)
    return FunctionOp("spmd.shard_map", on_each_chip, of)


def on_each_chip(
    graph: Graph,
    mesh: Any,
    names: tuple[str, ...],
    ins: tuple[Entries, ...],
    outs: tuple[Entries, ...],
    *arrays: jax.Array,
) -> Any:
    """Compute the graph on each chip's parts of the arrays, while JAX traces."""
    import jax

    def on_parts(*parts: jax.Array) -> Any:
        given = [p.reshape(s.shape) for p, s in zip(parts, graph.inputs, strict=True)]
        results = traced(graph, given)
        return [r.reshape(_with_dim(r.shape, e)) for r, e in zip(results, outs, strict=True)]

    return jax.shard_map(
        on_parts,
        mesh=whole_on(mesh).mesh,
        in_specs=tuple(map(partition_spec, ins)),
        out_specs=list(map(partition_spec, outs)),
        axis_names=frozenset(names),
        check_vma=False,
    )(*arrays)


def mesh_of(node: Node) -> Any:
    """The mesh that a node computes on, as `Mesh.written` says it, if it is a region's; else None."""
    of = _of_region(node)
    return None if of is None else of[1]


def graph_of(node: Node) -> Graph | None:
    """What each chip computes, if the node is a region's."""
    of = _of_region(node)
    return None if of is None else of[0]


def results_of(node: Node) -> dict[int, jax.sharding.NamedSharding]:
    """How the results of a region's node lie, if it has all axes of its mesh; of others nothing is said."""
    of = _of_region(node)
    if of is None:
        return {}
    _, mesh, names, _, outs = of
    if len(names) < len(mesh[1]):
        return {}
    return {v: _laid_out(mesh, e) for v, e in zip(node.outputs, outs, strict=True)}


def whole_on(mesh: Any) -> jax.sharding.NamedSharding:
    """A copy on each chip of the mesh."""
    return _laid_out(mesh, ())


def _laid_out(mesh: Any, entries: Entries) -> jax.sharding.NamedSharding:
    shape, axis_names, devices = mesh
    return marks.asked(shape, axis_names, devices, entries)


def _of_region(node: Node) -> tuple[Any, ...] | None:
    op = node.op
    return op.of if isinstance(op, FunctionOp) and op.compute is on_each_chip else None


def _with_dim(shape: Sequence[int], entries: Entries) -> tuple[int, ...]:
    return tuple(shape) if len(shape) or not entries else (1,)


@dataclass(frozen=True)
class Halves:
    """What two regions are made of: a graph whose first values are forward's, the others backward's.

    n_forward   how many values forward makes.
    n_results   how many of the outputs are forward's, the first ones.
    ins         of each input, by its number, how it is cut.
    outs        of each output, how it is put together.
    """

    graph: Graph
    n_forward: int
    n_results: int
    ins: dict[int, Entries]
    outs: tuple[Entries, ...]


@dataclass(frozen=True)
class Split:
    """Forward and backward, and which values of the graph each of them reads.

    kept   what forward gives beside its results, for backward alone.
    """

    forward: Region
    reads: tuple[int, ...]
    kept: tuple[int, ...]
    backward: Region
    backward_reads: tuple[int, ...]


def split(halves: Halves, cut: Cut) -> Split:
    """Forward and backward as regions of their own. Nothing is computed in both.

    What backward reads of forward is one value on each chip, and so together a tensor of as many parts.
    """
    graph, n = halves.graph, halves.n_results
    results, gradients = graph.outputs[:n], graph.outputs[n:]
    earlier = [node for node in graph.nodes if node.outputs[0] < halves.n_forward]
    later = _needed(graph.nodes[len(earlier) :], gradients)
    read = {v for node in later for v in node.inputs} | set(gradients)
    kept = tuple(sorted(v for v in read if 0 <= v < halves.n_forward))
    specs = graph.specs()
    of_kept: dict[int, Entries] = {
        v: (cut.names, *[None] * (len(specs[v].shape) - 1)) for v in kept
    }
    outputs = (*results, *kept)
    outs = (*halves.outs[:n], *of_kept.values())
    forward, reads = _region(graph, _needed(earlier, outputs), outputs, halves.ins, outs, cut)
    backward, backward_reads = _region(
        graph, later, gradients, halves.ins | of_kept, halves.outs[n:], cut
    )
    return Split(forward, reads, kept, backward, backward_reads)


def _region(
    graph: Graph,
    nodes: Sequence[Node],
    outputs: Sequence[int],
    given: dict[int, Entries],
    outs: tuple[Entries, ...],
    cut: Cut,
) -> tuple[Region, tuple[int, ...]]:
    """The region of some nodes of a graph, and which values it takes of those that are given."""
    used = {v for node in nodes for v in node.inputs} | set(outputs)
    reads = tuple(v for v in given if v in used)
    specs = graph.specs()
    part = Graph(tuple(specs[v] for v in reads), tuple(nodes), tuple(outputs))
    part = part.renamed({v: -i - 1 for i, v in enumerate(reads)})
    return Region(part, cut, tuple(given[v] for v in reads), outs), reads


def _needed(nodes: Sequence[Node], wanted: Sequence[int]) -> list[Node]:
    """Those of the nodes that the wanted values need."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]
