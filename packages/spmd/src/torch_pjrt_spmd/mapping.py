"""`shard_map`: a PyTorch function that each chip runs on its own parts of tensors.

The function is recorded once, on tensors that look like one chip's parts, forward and then backward by
PyTorch's autograd. Each of the two graphs becomes one node of the program, which JAX's `shard_map` runs on
every chip. What backward needs of forward is a result of the first node and an input of the second.

The gradients are those of the sum over all chips, where each of n chips that have a result alike counts for
1/n of it: what comes in is divided by n, and the gradient of an input that n chips have alike is the sum
of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import (
    BorrowingTape,
    Tape,
    Value,
    graph_of,
    is_pjrt,
    number_on,
    onto,
    value_of,
    wrap,
)
from torch_pjrt.plugin import TensorSpec, contiguous_spec
from torch_pjrt_spmd import partitioner
from torch_pjrt_spmd.any_mesh import as_mesh
from torch_pjrt_spmd.axis_collectives import psum, within
from torch_pjrt_spmd.cut import Cut, Entries
from torch_pjrt_spmd.regions import Halves, Split, split
from torch_pjrt_spmd.spec import ShardingError, Spec

if TYPE_CHECKING:
    from torch_pjrt_spmd.any_mesh import AnyMesh

Tensors = Sequence[torch.Tensor]


def shard_map(
    function: Callable[..., Any],
    mesh: AnyMesh,
    in_specs: Sequence[Spec],
    out_specs: Any,
    axis_names: Sequence[str] | None = None,
) -> Callable[..., Any]:
    """A function that runs `function` on each chip of the mesh, on that chip's parts of the arguments.

    function    of tensors, or of lists and dicts with tensors; gives a tensor, or a tuple of them. It may
                exchange by the names of axes: `psum`, `all_gather`, `ppermute` and their like. Its tensors
                are parts: of shape (16, 8) spread as ("data", None) over 4 chips, (4, 8).
    in_specs    of each argument how it is cut into parts; of a list or dict, all tensors in it.
    out_specs   how the parts that it gives are put together; of a tuple, one spec for each. Chips along an
                axis that a spec does not name must give the same: nobody checks it.
    axis_names  the axes by which tensors are cut; XLA's partitioner splits the work along the others. None:
                all of the mesh, or of the part of one (`mesh["data"]`) that is given.

    Values and gradients are PyTorch's, of what all chips compute together. The function is recorded at each
    call, and is one operator of the program. In it a Python number is a constant of the program.

    Raises `ShardingError` for specs that tensors cannot have, `LoweringError` where the function reads a
    value, draws random numbers, or uses a tensor from outside that needs a gradient. Others from outside are
    whole on each chip.

        def mean_square(x):  # of some rows
            return pmean(x.square().mean(), "data")

        loss = shard_map(mean_square, mesh, [("data", None)], ())(x)
    """
    mesh = as_mesh(mesh)
    names, mesh = tuple(mesh.axis_names if axis_names is None else axis_names), mesh.root
    if unknown := [name for name in names if name not in mesh.axis_names]:
        raise ShardingError(
            "The mesh lacks axes along which tensors are to be cut.",
            saw=repr(unknown),
            expected=f"some of {mesh.axis_names}",
        )
    cut = Cut(mesh, names)

    @wraps(function)
    def mapped(*args: Any) -> Any:
        if len(args) != len(in_specs):
            raise ShardingError(
                "There is one spec for each argument.",
                saw=f"{len(args)} arguments, {len(in_specs)} specs",
            )
        partitioner.take_over()
        leaves, structure = tree_flatten(args)
        specs = [
            s for arg, s in zip(args, in_specs, strict=True) for _ in range(len(tree_leaves(arg)))
        ]
        where = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        tensors = [leaves[i] for i in where]
        for x in tensors:
            if not is_pjrt(x):
                raise TypeError(
                    f"a mapped function takes tensors of the device, saw one on {x.device}: "
                    "`tensor.to('pjrt')`, or `distribute_tensor(tensor, mesh, spec)`"
                )

        def on_parts(*parts: torch.Tensor) -> Any:
            filled = list(leaves)
            for i, part in zip(where, parts, strict=True):
                filled[i] = part
            return function(*tree_unflatten(filled, structure))

        ins = tuple(cut.entries(leaves[i].shape, specs[i]) for i in where)
        call = _Call(on_parts, cut, ins, out_specs)
        results = _OnShards.apply(call, *tensors)
        return tuple(results) if call.gives_several else results[0]

    return torch.compiler.disable(mapped)


@dataclass
class _Call:
    """A call of a mapped function, of tensors alone. What it gives is known when it was recorded.

    ins    how each argument is cut; `outs` how each result is put together.
    """

    function: Callable[..., Any]
    cut: Cut
    ins: tuple[Entries, ...]
    out_specs: Any
    gives_several: bool = False
    outs: tuple[Entries, ...] = ()
    # Of each result whether a gradient comes back from it.
    differentiable: list[bool] = field(default_factory=list)

    def of_parts(self, parts: Tensors) -> list[torch.Tensor]:
        """What the function gives for one chip's parts."""
        given = self.function(*parts)
        self.gives_several = isinstance(given, (tuple, list))
        results = list(given) if self.gives_several else [given]
        specs = list(self.out_specs) if self.gives_several else [self.out_specs]
        if len(specs) != len(results):
            raise ShardingError(
                "A mapped function gives another number of tensors than there are specs.",
                saw=f"{len(results)} results, out_specs {self.out_specs!r}",
            )
        for result in results:
            if not is_pjrt(result):
                raise LoweringError(
                    "A mapped function gives something that is no tensor of the device.",
                    saw=repr(result),
                )
        self.outs = tuple(
            self.cut.entries_of_part(r.shape, s) for r, s in zip(results, specs, strict=True)
        )
        self.differentiable = [r.requires_grad for r in results]
        return results

    def chosen(self, of_results: Sequence[Any]) -> list[Any]:
        """Those for results from which a gradient comes back."""
        return [x for x, yes in zip(of_results, self.differentiable, strict=True) if yes]

    def gradients(
        self, results: Tensors, parts: Tensors, grads: Tensors, *, create_graph: bool = False
    ) -> list[torch.Tensor]:
        """Of those of one chip's parts that need gradients, from the gradients of `chosen` results."""
        needing = [p for p in parts if p.requires_grad]
        alike = [self.cut.n_alike(e) for e in self.chosen(self.outs)]
        found = torch.autograd.grad(
            self.chosen(results),
            needing,
            [g / n if n > 1 else g for g, n in zip(grads, alike, strict=True)],
            create_graph=create_graph,
            allow_unused=True,
        )
        ins = [e for e, p in zip(self.ins, parts, strict=True) if p.requires_grad]
        return [
            torch.zeros_like(p) if g is None else self._summed(g, e)
            for g, p, e in zip(found, needing, ins, strict=True)
        ]

    def _summed(self, grad: torch.Tensor, entries: Entries) -> torch.Tensor:
        names = self.cut.unnamed(entries)
        return psum(grad, names) if names else grad


class _OnShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: torch.Tensor) -> Any:
        recorded = _recorded(call, tensors, ctx.needs_input_grad[1:])
        regions = recorded.regions
        outside = [wrap(v, v.spec) for v in recorded.outside.values()]
        inputs = _numbered(tensors) | dict(zip(recorded.outside, outside, strict=True))
        given = regions.forward([inputs[v] for v in regions.reads])
        results, kept = given[: len(call.outs)], given[len(call.outs) :]
        ctx.call, ctx.recorded = call, recorded
        ctx.save_for_backward(*tensors, *outside, *kept)
        ctx.mark_non_differentiable(
            *[r for r, yes in zip(results, call.differentiable, strict=True) if not yes]
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        call, recorded, needs = ctx.call, ctx.recorded, ctx.needs_input_grad[1:]
        of_results = call.chosen(grads)
        tensors = ctx.saved_tensors[: len(needs)]
        if torch.is_grad_enabled():
            found = _differentiable_gradients(call, tensors, needs, of_results)
        else:
            further = (*recorded.outside, *recorded.regions.kept)
            inputs = _numbered(tensors) | dict(
                zip(
                    (*further, *recorded.grads),
                    (*ctx.saved_tensors[len(needs) :], *of_results),
                    strict=True,
                )
            )
            found = recorded.regions.backward([inputs[v] for v in recorded.regions.backward_reads])
        each = iter(found)
        return None, *[next(each) if need else None for need in needs]


def _numbered(tensors: Tensors) -> dict[int, torch.Tensor]:
    """The first inputs of a tape, by their numbers."""
    return {-i - 1: x for i, x in enumerate(tensors)}


def _differentiable_gradients(
    call: _Call, tensors: Tensors, needs: Sequence[bool], grads: Tensors
) -> Any:
    """Gradients that have gradients: each chip computes forward again, and differentiates it."""

    def gradients(*given: torch.Tensor) -> Any:
        parts, of_results = given[: len(tensors)], given[len(tensors) :]
        results = call.of_parts(parts)
        return tuple(call.gradients(results, parts, of_results, create_graph=True))

    ins = (*call.ins, *call.chosen(call.outs))
    outs = [e for e, need in zip(call.ins, needs, strict=True) if need]
    return _OnShards.apply(_Call(gradients, call.cut, ins, outs), *tensors, *grads)


@dataclass
class _Recorded:
    """What a call became.

    outside   values from outside that the function uses, by their numbers on its tape.
    grads     the numbers of the gradients that come in.
    """

    regions: Split
    outside: dict[int, Value]
    grads: list[int]


def _recorded(call: _Call, tensors: Tensors, needs: Sequence[bool]) -> _Recorded:
    tape = BorrowingTape()
    specs = [
        contiguous_spec(call.cut.part(x.shape, e), x.dtype)
        for x, e in zip(tensors, call.ins, strict=True)
    ]
    try:
        with onto(tape), within(call.cut.sizes), torch.enable_grad():
            parts = [_stand_in(tape, spec) for spec in specs]
            for part, need in zip(parts, needs, strict=True):
                part.requires_grad_(need)
            results = call.of_parts(parts)
            differentiable = call.chosen(results)
            _refuse_strange_leaves(differentiable, parts)
            numbers = [_number(tape, r) for r in results]
            n_forward, first = tape.size, len(tape.inputs)
            like = [contiguous_spec(tuple(r.shape), r.dtype) for r in differentiable]
            grads = [_stand_in(tape, spec) for spec in like]
            found = call.gradients(results, parts, grads) if differentiable else []
            gradients = [_number(tape, g) for g in found]
            graph = graph_of(tape, [*numbers, *gradients])
            inputs = list(tape.inputs)
    finally:
        tape.give_back()
    if any(node.draw is not None for node in graph.nodes):
        raise LoweringError(
            "A mapped function draws random numbers.",
            hint="draw outside, where they are the same whatever the mesh, and pass them as an argument",
        )
    ins = {-i - 1: e for i, e in enumerate(call.ins)}
    of_grads = {-first - 1 - i: e for i, e in enumerate(call.chosen(call.outs))}
    outside = {-i - 1: v for i, v in enumerate(inputs) if -i - 1 not in ins | of_grads}
    whole = {number: (None,) * len(value.spec.shape) for number, value in outside.items()}
    outs = list(call.outs)
    if gradients:
        outs += [e for e, need in zip(call.ins, needs, strict=True) if need]
    halves = Halves(graph, n_forward, len(numbers), ins | of_grads | whole, tuple(outs))
    return _Recorded(split(halves, call.cut), outside, list(of_grads))


def _number(tape: Tape, tensor: torch.Tensor) -> int:
    return number_on(tape, value_of(tensor.detach()))


def _stand_in(tape: Tape, spec: TensorSpec) -> torch.Tensor:
    """A tensor that stands for an input of the tape."""
    value = Value(spec, 0, None)
    tape.take(value)
    return wrap(value, spec)


def _refuse_strange_leaves(results: Tensors, parts: Tensors) -> None:
    """Raise if a result has a gradient for another tensor than the arguments: it would be lost."""
    ours = set(map(id, parts))
    seen: set[Any] = set()
    waiting = [r.grad_fn for r in results]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in ours:
            raise LoweringError(
                "A mapped function uses a tensor from outside that needs a gradient.",
                saw=f"a tensor of {list(leaf.shape)}",
                hint="pass it as an argument, with the spec `()` if it is whole on each chip",
            )
        waiting += [n for n, _ in node.next_functions]
