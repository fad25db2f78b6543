"""Sums over a batch that become gradients in parts: each chip adds up its rows, then a reduce-scatter.

before  v2 = mm(v0, v1)                    v0: (m, tokens), v1: (tokens, n); tokens on all chips
        v3 = annotate(v2, "fsdp.parts")    each chip is to have a part of it
after   v3 = fsdp.scattered_sum(v0, v1)    each chip: mm of its tokens, and of the sum over chips a part

Left to XLA, the partitioner adds the whole up on every chip, and cuts it then. Its compilers for TPUs and
GPUs turn that into a reduce-scatter; that for CPUs does not, and adds all gradients of a step up at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.extend import FunctionOp, annotation_of, intern, traced
from torch_pjrt.plugin import (
    Builder,
    Graph,
    Node,
    Ref,
    Stage,
    TensorSpec,
    aten,
    contiguous_spec,
    rewritten,
)

if TYPE_CHECKING:
    import jax

PARTS = "fsdp.parts"  # as in gathering.py, which is not imported before somebody shards


def _of_product(node: Node) -> tuple[int | None, ...] | None:
    return 1, 0


def _of_sum(node: Node) -> tuple[int | None, ...] | None:
    _, dims, *_ = node.signature.args
    return (0,) if dims and 0 in [d % len(node.signature.specs[0].shape) for d in dims] else None


def _of_embedding(node: Node) -> tuple[int | None, ...] | None:
    by_frequency = node.signature.args[4]
    return None if by_frequency else (0, 0)


# Operators that add something up over a dim of tokens: of each input which dim that is.
SUMS: dict[Any, Callable[[Node], tuple[int | None, ...] | None]] = {
    aten.mm.default: _of_product,
    aten.sum.dim_IntList: _of_sum,
    aten.embedding_dense_backward.default: _of_embedding,
}


@dataclass(frozen=True, slots=True)
class ScatterGradients:
    """Sums whose only reader wants them in parts; a cast or a view without effect may be between."""

    name: str = "scatter-gradients"
    stage: Stage = Stage.REWRITE

    def __call__(self, graph: Graph) -> Graph:
        wanted = [n for n in graph.nodes if (a := annotation_of(n)) is not None and a.kind == PARTS]
        if not wanted:
            return graph
        makers = {v: n for n in graph.nodes for v in n.outputs}
        readers = Counter(v for n in graph.nodes for v in n.inputs)
        readers.update(graph.outputs)
        sums: dict[int, Node] = {}
        for node in wanted:
            found = _sum_behind(node, makers, readers)
            if found is not None:
                sums[node.outputs[0]] = found
        refs = graph.specs()

        def rewrite(node: Node, build: Builder) -> list[Ref] | None:
            summed = sums.get(node.outputs[0]) if node.outputs else None
            if summed is None:
                return None
            op = _op_for(summed, node)
            if op is None:
                return None
            inputs = [Ref(v, refs[v]) for v in summed.inputs]
            return build(op, *inputs, outs=[node.signature.outs[0]])

        return rewritten(graph, rewrite) if sums else graph


def _sum_behind(node: Node, makers: dict[int, Node], readers: Counter[int]) -> Node | None:
    value = node.inputs[0]
    for _ in range(3):
        maker = makers.get(value)
        if maker is None or readers[value] != 1:
            return None
        if maker.op in SUMS:
            return maker
        if not (_is_cast(maker) or _is_same_row(maker)):
            return None
        value = maker.inputs[0]
    return None


def _is_cast(node: Node) -> bool:
    return node.op is aten._to_copy.default and node.signature.outs[0].dtype.is_floating_point


def _is_same_row(node: Node) -> bool:
    """A view that only drops or adds dims of size 1: PyTorch makes the gradient of a bias so."""
    if str(node.op) != "pjrt.read":
        return False
    before, after = node.signature.specs[0], node.signature.outs[0]
    if before.numel != after.numel or not before.contiguous or len(node.signature.args) != 3:
        return False
    view = node.signature.args[1]
    same = [n for n in before.shape if n != 1] == [n for n in after.shape if n != 1]
    return same and view.contiguous and node.signature.args[2] == 0


def _op_for(summed: Node, node: Node) -> FunctionOp | None:
    annotation = annotation_of(node)
    assert annotation is not None
    shape, names, devices, spec, batch, reduce_dtype = annotation.args
    dims = SUMS[summed.op](summed)
    if dims is None or summed.numbers or summed.draw is not None:
        return None
    n = prod(dict(zip(names, shape, strict=True))[name] for name in batch)
    of_chip = []
    for looks, dim in zip(summed.signature.specs, dims, strict=True):
        if dim is None:
            of_chip.append(contiguous_spec(looks.shape, looks.dtype))
            continue
        if looks.shape[dim] % n:
            return None
        local = (*looks.shape[:dim], looks.shape[dim] // n, *looks.shape[dim + 1 :])
        of_chip.append(contiguous_spec(local, looks.dtype))
    s = summed.signature
    outs = tuple(contiguous_spec(o.shape, o.dtype) for o in s.outs)
    on_parts = intern(
        s.op, s.args, s.kwargs, tuple(of_chip), outs, returns=s.returns, precision=s.precision
    )
    made = node.signature.outs[0]
    written = (tuple(shape), tuple(names), devices)
    return _op(on_parts, tuple(of_chip), written, dims, spec, batch, reduce_dtype, made)


@lru_cache(maxsize=4096)
def _op(
    on_parts: Any,
    of_chip: tuple[TensorSpec, ...],
    mesh: tuple[Any, ...],
    dims: tuple[int | None, ...],
    spec: tuple[Any, ...],
    batch: tuple[str, ...],
    reduce_dtype: str | None,
    made: TensorSpec,
) -> FunctionOp:
    """The one operator of equal sums, so that equal steps are one program."""
    graph = Graph(
        of_chip, (Node(on_parts, tuple(-i - 1 for i in range(len(of_chip))), (0,)),), (0,)
    )
    dtype = str(made.dtype).removeprefix("torch.")
    of = (graph, mesh, dims, spec, batch, reduce_dtype, tuple(made.shape), dtype)
    return FunctionOp("fsdp.scattered_sum", scattered_sum, of)


def scattered_sum(
    graph: Graph,
    mesh: tuple[Any, ...],
    dims: tuple[int | None, ...],
    spec: tuple[Any, ...],
    batch: tuple[str, ...],
    reduce_dtype: str | None,
    shape: tuple[int, ...],
    dtype: str,
    *arrays: jax.Array,
) -> Any:
    """While JAX traces: the graph on each chip's rows, summed over the chips, each of which keeps a part."""
    import jax
    from jax import lax
    from jax.sharding import PartitionSpec

    from torch_pjrt.extend import jax_dtype
    from torch_pjrt_spmd import marks

    shape_of_mesh, names_of_axes, devices = mesh
    how = marks.asked(shape_of_mesh, names_of_axes, devices, spec)
    scattered = [(d, _names(entry, batch)) for d, entry in enumerate(spec)]
    scattered = [(d, names) for d, names in scattered if names]
    rest = tuple(name for name in batch if not any(name in names for _, names in scattered))

    def on_parts(*parts: jax.Array) -> jax.Array:
        (result,) = traced(graph, list(parts))
        if reduce_dtype is not None:
            result = result.astype(jax_dtype(getattr(torch, reduce_dtype)))
        result = result.reshape(shape)
        for dim, names in scattered:
            result = lax.psum_scatter(result, names, scatter_dimension=dim, tiled=True)
        return lax.psum(result, rest) if rest else result

    ins = tuple(PartitionSpec() if d is None else PartitionSpec(*[None] * d, batch) for d in dims)
    out = [None] * len(shape)
    for dim, names in scattered:
        out[dim] = names  # pyright: ignore[reportCallIssue, reportArgumentType]
    mapped = jax.shard_map(
        on_parts,
        mesh=how.mesh,
        in_specs=ins,
        out_specs=PartitionSpec(*out),
        axis_names=set(batch),
        check_vma=False,
    )
    result = mapped(*arrays).astype(jax_dtype(getattr(torch, dtype)))
    return [lax.with_sharding_constraint(result, how)]


def _names(entry: Any, batch: tuple[str, ...]) -> tuple[str, ...]:
    names = (entry,) if isinstance(entry, str) else tuple(entry or ())
    return tuple(name for name in names if name in batch)
