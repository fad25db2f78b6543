"""Forward and backward of a graph: its calls on one tape, PyTorch's own autograd of them on another.

What the second tape reads of the first is what forward keeps for backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from torch_pjrt.extend import (
    BorrowingTape,
    Line,
    Tape,
    Value,
    buffer_of,
    deferred_checks_of,
    graph_of,
    is_pjrt,
    number_on,
    spec_and_offset,
    value_of,
    with_precision,
)
from torch_pjrt.plugin import Graph, TensorSpec, spec_of
from torch_pjrt_dynamo.lines import LinedCode, line_of, name_of
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.partition import Partition, note
from torch_pjrt_dynamo.recorded_graph import (
    CannotShare,
    InputSpec,
    RecordedGraph,
    Results,
    ScratchInput,
    signature_of,
)
from torch_pjrt_dynamo.recording import onto_scratch, run_nodes


@dataclass(slots=True)
class RecordedForward(RecordedGraph):
    """What a call appends, returns, and keeps for its backward.

    n_users     how many results are the caller's; the others are kept.
    kept        arguments that are kept, too.
    different   of the results: those that have a gradient, and how it looks.
    others      of the results: tensors that have none.
    unreached   arguments that need a gradient, and whose gradient no result has a part in.
    backward    a graph of what is kept (arguments, then results) and of gradients of the results. It gives
                those of all arguments, None where there is none.
    """

    n_users: int = 0
    kept: list[int] = field(default_factory=list)
    different: list[tuple[int, TensorSpec]] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    unreached: list[int] = field(default_factory=list)
    backward: RecordedGraph = field(default_factory=lambda: RecordedGraph(None, [], []))


class NotSoSimple(Exception):
    """Something about the graph is for AOTAutograd."""


def record_both(
    module: GraphModule, specs: list[InputSpec], needs: list[bool], precision: str | None
) -> RecordedForward:
    """Forward and backward for arguments that look so; `needs` says which have a gradient.

    Raises `CannotRecord` where that is not simple, or fails.
    """
    try:
        return _Recording(module, specs, needs, precision).recorded()
    except CannotRecord:
        raise
    except Exception as error:  # whatever it is: AOTAutograd does it, or says what it is
        raise CannotRecord(module.graph.output_node(), error) from error


class _Recording:
    """The two tapes, while they are recorded."""

    def __init__(
        self,
        module: GraphModule,
        specs: list[InputSpec],
        needs: list[bool],
        precision: str | None,
    ) -> None:
        self.module = module
        self.specs = specs
        self.needs = needs
        self.precision = precision
        self.name = name_of(module, "forward")
        self.scratch = Tape(nested=True, defers_checks=True)
        self.behind = BorrowingTape()
        self.code = self.scratch.code = LinedCode()
        self.code_behind = self.behind.code = LinedCode()
        self.hooked: list[Any] = []  # holds nodes of autograd, which their identities stand for
        self.seen: set[int] = set()

    def recorded(self) -> RecordedForward:
        try:
            with onto_scratch(self.scratch, above_autograd=True):
                inputs = [ScratchInput.of(self.scratch, spec) for spec in self.specs]
                for given, needs in zip(inputs, self.needs, strict=True):
                    given.tensor.requires_grad_(needs)
                tensors = [i.tensor for i in inputs]
                with torch.enable_grad():
                    results = run_nodes(
                        self.module, tensors, self.code, self.precision, self.note_lines
                    )
                self.verify(inputs, results)
                different = [
                    (i, _dense_spec(x))
                    for i, x in enumerate(results)
                    if isinstance(x, torch.Tensor) and x.requires_grad
                ]
                n_tangents, gradients, behind = self.differentiate(inputs, results, different)
                return self.sorted_out(inputs, results, different, n_tangents, gradients, behind)
        finally:
            self.behind.give_back()
            deferred_checks_of(self.scratch)  # if it was not asked for

    def note_lines(self, node: Node, result: Any) -> None:
        """What backward of this call records comes from the call's line."""
        line = line_of(node)
        new = [x.grad_fn for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        while new:
            of_autograd = new.pop()
            if of_autograd is None or id(of_autograd) in self.seen:
                continue
            self.seen.add(id(of_autograd))
            self.hooked.append(of_autograd)
            if hasattr(of_autograd, "variable"):  # it accumulates
                continue
            of_autograd.register_prehook(self.at(line and line._replace(backward=True)))
            new += [following for following, _ in of_autograd.next_functions]

    def at(self, line: Line | None) -> Callable[[Any], None]:
        code = self.code_behind
        return lambda gradients: code.lines.begin(len(code), line)

    def verify(self, inputs: list[ScratchInput], results: list[Any]) -> None:
        """That a call needs nothing but the results' values, and writes to nothing that has a gradient."""
        for given, needs in zip(inputs, self.needs, strict=True):
            x = given.tensor
            if x.requires_grad != needs or x.grad_fn is not None:
                raise NotSoSimple("A write gives an argument a gradient.")
            if needs and buffer_of(x).value is not given.value:
                raise NotSoSimple("It writes to an argument that has a gradient.")
        tensors = [x for x in results if isinstance(x, torch.Tensor)]
        if not all(is_pjrt(x) and not x.is_complex() and not x.is_conj() for x in tensors):
            raise NotSoSimple("A result is elsewhere, or complex.")
        behind = [id(buffer_of(x)) for x in (*tensors, *(i.tensor for i in inputs))]
        if len(set(behind)) < len(behind):
            raise NotSoSimple("A result shares memory.")
        if not any(x.requires_grad for x in tensors):
            raise NotSoSimple("No result has a gradient.")

    def differentiate(
        self,
        inputs: list[ScratchInput],
        results: list[Any],
        different: list[tuple[int, TensorSpec]],
    ) -> tuple[int, list[Any], Graph]:
        """How many gradients are given, those that are made, and the graph that makes them."""
        with onto_scratch(self.behind, above_autograd=True):
            tangents = [
                ScratchInput.of(self.behind, InputSpec(spec)).tensor for _, spec in different
            ]
            made = iter(
                torch.autograd.grad(
                    [results[i] for i, _ in different],
                    [i.tensor for i in inputs if i.tensor.requires_grad],
                    tangents,
                    allow_unused=True,
                )
            )
            gradients = [next(made) if needs else None for needs in self.needs]
            wanted = [number_on(self.behind, value_of(x)) for x in gradients if x is not None]
            return len(tangents), gradients, graph_of(self.behind, wanted)

    def sorted_out(
        self,
        inputs: list[ScratchInput],
        results: list[Any],
        different: list[tuple[int, TensorSpec]],
        n_tangents: int,
        gradients: list[Any],
        behind: Graph,
    ) -> RecordedForward:
        read = {v for node in behind.nodes for v in node.inputs} | set(behind.outputs)
        used = [i for i in range(len(behind.inputs)) if -i - 1 in read]
        self.behind.give_back()
        arguments = {id(i.value): n for n, i in enumerate(inputs)}
        kept: dict[int, int] = {}  # inputs of backward that are arguments: which
        kept_values: dict[int, Value] = {}  # inputs of backward that forward makes
        constants: dict[int, Value] = {}
        for i in used:
            value = self.behind.inputs[i]
            if i < n_tangents:
                continue
            if id(value) in arguments:
                kept[i] = arguments[id(value)]
            elif value.array is not None:
                constants[i] = value
            else:
                kept_values[i] = value
        for n in kept.values():
            if buffer_of(inputs[n].tensor).value is not inputs[n].value:
                raise NotSoSimple("Backward needs what an argument was before it was written to.")
        how = Results(self.scratch, inputs, results, [None] * len(results), above_autograd=True)
        try:
            made = how.recorded(self.name, self.precision, list(kept_values.values()))
        except CannotShare as error:
            raise NotSoSimple(str(error)) from error
        # PyTorch refuses writes to what a function of autograd has made as a view of something.
        made.detached = [position for position, *_ in made.shared]
        note(Partition(self.name, 1.0, tuple(self.described(kept_values.values()))))
        tangents = [i for i in used if i < n_tangents]
        positions = [*kept, *kept_values]
        return RecordedForward(
            **{name: getattr(made, name) for name in RecordedGraph.__dataclass_fields__},
            n_users=len(results),
            kept=list(kept.values()),
            different=different,
            others=[
                i
                for i, x in enumerate(results)
                if isinstance(x, torch.Tensor) and not x.requires_grad
            ],
            unreached=[
                n
                for n, (needs, x) in enumerate(zip(self.needs, gradients, strict=True))
                if needs and x is None
            ],
            backward=self.backward(
                behind,
                gradients,
                [*positions, *tangents, *constants],
                [*range(len(positions)), *(len(positions) + i for i in tangents)],
                list(constants.values()),
            ),
        )

    def backward(
        self,
        graph: Graph,
        gradients: list[Any],
        order: list[int],
        used: list[int],
        constants: list[Value],
    ) -> RecordedGraph:
        """Backward, whose inputs are those at `order` of the graph: the arguments `used`, and constants."""
        made = RecordedGraph(None, used, [None] * len(gradients), constants=constants)
        specs = [
            (position, _dense_spec(x)) for position, x in enumerate(gradients) if x is not None
        ]
        made.fresh = [(position, i, spec) for i, (position, spec) in enumerate(specs)]
        if not specs:
            return made
        named = graph.renamed({-i - 1: -n - 1 for n, i in enumerate(order)})
        named = Graph(tuple(graph.inputs[i] for i in order), named.nodes, named.outputs)
        if self.precision is not None:
            named = with_precision(named, self.precision)
        n_draws = self.behind.n_draws
        name = name_of(self.module, "backward")
        made.signature = signature_of(name, named, n_draws)
        made.n_draws = n_draws
        made.code = [made.signature, *range(-1, -len(order) - 1, -1)]
        return made

    def described(self, values: Any) -> Iterator[tuple[str, tuple[int, ...], int]]:
        """Of each value that is kept: the operator that makes it, its shape, its bytes."""
        makers = {v: n for n in graph_of(self.scratch, ()).nodes for v in n.outputs}
        for value in values:
            shape, dtype = value.spec.shape, value.spec.dtype
            operator = str(makers[value.number].op).removeprefix("aten.")
            kind = str(dtype).removeprefix("torch.")
            yield f"{operator}: {kind}", tuple(shape), math.prod(shape) * dtype.itemsize


def _dense_spec(x: torch.Tensor) -> TensorSpec:
    """How a new tensor looks that is to be like this one."""
    spec = spec_and_offset(x)[0]
    if spec.dense:
        return spec
    like = torch.empty_like(spec.meta())
    return spec_of(tuple(like.shape), like.dtype, like.stride())
