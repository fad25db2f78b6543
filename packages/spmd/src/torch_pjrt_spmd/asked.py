"""What a graph itself says of how its values lie: annotations and regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch_pjrt.extend import annotation_of
from torch_pjrt.plugin import GraphOp
from torch_pjrt_spmd import marks, regions

if TYPE_CHECKING:
    import jax

    from torch_pjrt.plugin import Graph, Node

    NamedSharding = jax.sharding.NamedSharding


def asked_in(graph: Graph) -> dict[int, NamedSharding]:
    """The values of the graph that an annotation or a region made, and how they lie."""
    found = {}
    for node in graph.nodes:
        found |= regions.results_of(node)
        if (how := _asked_by(node)) is not None:
            found[node.outputs[0]] = how
        elif isinstance(node.op, GraphOp):
            within = asked_in(node.op.graph)
            pairs = zip(node.outputs, node.op.graph.outputs, strict=True)
            found |= {outer: within[inner] for outer, inner in pairs if inner in within}
    return found


def first_asked_in(graph: Graph) -> NamedSharding | None:
    """How a value lies that an annotation somewhere in the graph made; None if none did.

    Of one that speaks of some axes only, the mesh is what counts.
    """
    for node in graph.nodes:
        within = first_asked_in(node.op.graph) if isinstance(node.op, GraphOp) else None
        mesh = regions.mesh_of(node)
        of_region = None if mesh is None else regions.whole_on(mesh)
        if (found := within or of_region or _asked_by(node) or _asked_along(node)) is not None:
            return found
    return None


def shapes_on_a_chip(graph: Graph) -> Iterator[tuple[int, ...]]:
    """Of each value that an annotation somewhere in the graph made, or a region, what a chip has of it.

    What it may have, where an annotation speaks of some axes only.
    """
    for node in graph.nodes:
        if (how := _asked_by(node)) is not None:
            yield how.shard_shape(tuple(node.signature.outs[0].shape))
        elif (
            annotation := annotation_of(node)
        ) is not None and annotation.kind in marks.OF_SOME_AXES:
            yield from _shapes_along(node.signature.outs[0].shape, *annotation.args)
        elif isinstance(node.op, GraphOp):
            yield from shapes_on_a_chip(node.op.graph)
        elif (of_parts := regions.graph_of(node)) is not None:
            yield from {tuple(spec.shape) for spec in of_parts.specs().values()}


def _asked_by(node: Node) -> NamedSharding | None:
    """How the node's value is to lie, if it is an annotation of ours."""
    annotation = annotation_of(node)
    if annotation is None or annotation.kind not in (marks.KIND, marks.KIND_FORWARD):
        return None
    return marks.asked(*annotation.args)


def _shapes_along(
    whole: tuple[int, ...],
    shape: tuple[int, ...],
    axis_names: tuple[str, ...],
    devices: tuple[int, ...] | str | None,
    along: tuple[str, ...],
    spec: tuple[Any, ...],
) -> set[tuple[int, ...]]:
    """Of a value that is annotated along some axes: in parts along these, and along any of the others."""
    found = {marks.asked(shape, axis_names, devices, spec).shard_shape(tuple(whole))}
    for name, n in zip(axis_names, shape, strict=True):
        if name not in along:
            found |= {
                (*of_chip[:dim], size // n, *of_chip[dim + 1 :])
                for of_chip in found
                for dim, size in enumerate(of_chip)
                if size % n == 0
            }
    return found


def _asked_along(node: Node) -> NamedSharding | None:
    annotation = annotation_of(node)
    if annotation is None or annotation.kind not in marks.OF_SOME_AXES:
        return None
    shape, axis_names, devices = annotation.args[:3]
    return marks.asked(shape, axis_names, devices, ())
