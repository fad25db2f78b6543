"""What a call of a graph appends and returns, sorted out of what a scratch tape holds at the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import torch

from torch_pjrt.extend import (
    Refusal,
    Tape,
    Value,
    buffer_of,
    content,
    deferred_checks_of,
    graph_of,
    intern,
    is_pjrt,
    number_key,
    number_on,
    spec_and_offset,
    value_of,
    with_precision,
    wrap,
)
from torch_pjrt.plugin import Graph, GraphOp, Signature, Slot, TensorSpec


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What an input tensor looks like to the graph.

    spec    its shape, dtype and strides.
    base    what its whole storage looks like, and `offset` where it begins there, in elements; None where the
            graph sees the tensor alone.
    """

    spec: TensorSpec
    base: TensorSpec | None = None
    offset: int = 0


Written = tuple[int, int, int | None]


@dataclass(slots=True)
class RecordedGraph:
    """What a call appends, and what it returns.

    signature   of the one node; None if there is nothing to compute.
    used        which arguments the node reads, in order.
    uses_all    they are all, in their own order.
    code        of the node, where it is the first of a tape: its inputs are numbered -1, -2, ...
    n_draws     how many draws the node takes.
    constants   what it reads after them: tensors of the host that the graph holds, on the device since.
    template    the results: those that are numbers or None, and room for the others.
    fresh       (position in the template, result of the node, its spec): new tensors.
    given       (position, argument): arguments that are returned.
    views       (position, argument, shape, strides, offset within the argument): views of arguments.
    bases       (result of the node, its spec): new storages that several results share, and
    shared      (position, base, shape, strides, offset): those.
    whole       (position, base): a new storage's own tensor.
    detached    positions of what shares memory with an argument or a base, and is no view of it.
    written     (argument, result of the node, origin): arguments that the graph writes to; the origin is the
                argument's number among the node's inputs: -1, -2, ..., or None where it is none of them.
    refusals    what the node checks, where it does: its last result says what was found.
    """

    signature: Signature | None
    used: list[int]
    template: list[Any]
    constants: list[Value] = field(default_factory=list)
    fresh: list[tuple[int, int, TensorSpec]] = field(default_factory=list)
    given: list[tuple[int, int]] = field(default_factory=list)
    views: list[tuple[int, int, Any, Any, int]] = field(default_factory=list)
    bases: list[tuple[int, TensorSpec]] = field(default_factory=list)
    shared: list[tuple[int, int, Any, Any, int]] = field(default_factory=list)
    whole: list[tuple[int, int]] = field(default_factory=list)
    detached: list[int] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    uses_all: bool = False
    code: list[Any] = field(default_factory=list)
    n_draws: int = 0


@dataclass(slots=True, eq=False)
class ScratchInput:
    """A tensor of the scratch tape that stands for an argument.

    strange     its strides are not the argument's: those have gaps, or overlap.
    value       what its buffer holds before the graph has run.
    """

    spec: InputSpec
    tensor: torch.Tensor
    value: Value
    strange: bool = False

    @classmethod
    def of(cls, scratch: Tape, given: InputSpec) -> ScratchInput:
        spec, base = given.spec, given.base
        strange = base is None and not spec.dense
        if strange:
            like = torch.empty_like(spec.meta())
            spec = spec_of_tensor(like)
        value = Value(base or spec, 0, None)
        scratch.take(value)
        tensor = wrap(value, base or spec)
        if base is not None and (base is not spec or given.offset):
            tensor = tensor.as_strided(spec.shape, spec.strides, given.offset)
        return cls(given, tensor, value, strange)


def spec_of_tensor(tensor: torch.Tensor) -> TensorSpec:
    return spec_and_offset(tensor)[0]


class CannotShare(Exception):
    """A result shares memory with another tensor in a way that a call does not make anew."""


class Results:
    """What the scratch tape holds at the end, sorted into a `RecordedGraph`.

    Where AOTAutograd traced the graph it makes views anew, and a result may be a copy or the argument
    itself. For calls of a user's (`above_autograd`), results share memory as they do without a compiler.
    """

    def __init__(
        self,
        scratch: Tape,
        inputs: Sequence[Any],
        results: Sequence[Any],
        traced: Sequence[TensorSpec | None],
        *,
        above_autograd: bool = False,
    ) -> None:
        self.scratch = scratch
        self.shares = above_autograd
        self.traced = traced
        self.inputs = inputs
        self.results = results
        self.wanted: list[Value] = []
        self.positions: dict[int, int] = {}

    def result_of(self, value: Value) -> int:
        """Which result of the node the value is."""
        position = self.positions.get(id(value))
        if position is None:
            position = self.positions[id(value)] = len(self.wanted)
            self.wanted.append(value)
        return position

    def recorded(
        self, name: str, precision: str | None, kept: Sequence[Value] = ()
    ) -> RecordedGraph:
        """All of it; values that are `kept` are further results, on storages of their own."""
        made = RecordedGraph(None, [], [None] * (len(self.results) + len(kept)))
        tensors = {
            id(i.tensor): n for n, i in enumerate(self.inputs) if isinstance(i, ScratchInput)
        }
        behind = {
            id(buffer_of(i.tensor)): n
            for n, i in enumerate(self.inputs)
            if isinstance(i, ScratchInput)
        }
        for n, i in enumerate(self.inputs):
            if isinstance(i, ScratchInput) and buffer_of(i.tensor).value is not i.value:
                made.written.append((n, self.result_of(value_of(i.tensor)), None))
        owners: dict[int, list[int]] = {}
        for position, result in enumerate(self.results):
            if not is_pjrt(result):
                made.template[position] = result
            elif id(result) in tensors:
                made.given.append((position, tensors[id(result)]))
            elif id(buffer_of(result)) in behind:
                self.view(made, position, behind[id(buffer_of(result))], result)
            else:
                owners.setdefault(id(buffer_of(result)), []).append(position)
        for positions in owners.values():
            self.own(made, positions)
        for position, value in enumerate(kept, len(self.results)):
            made.fresh.append((position, self.result_of(value), value.spec))
        self.finish(made, name, precision)
        return made

    def view(self, made: RecordedGraph, position: int, argument: int, result: torch.Tensor) -> None:
        """A result that shares the storage of an argument."""
        source = self.inputs[argument]
        if _layout(result) == _layout(source.tensor) and not self.shares:
            made.given.append((position, argument))
        elif source.strange or result.dtype != source.tensor.dtype or _has_bit(result):
            self.copy(made, position, result)
        else:
            offset = result.storage_offset() - source.tensor.storage_offset()
            made.views.append((position, argument, tuple(result.shape), result.stride(), offset))
            self.note_detached(made, position, result)

    def own(self, made: RecordedGraph, positions: list[int]) -> None:
        """Results that share a storage which the graph has made."""
        first = self.results[positions[0]]
        dense = all((self.traced[p] or spec_of_tensor(self.results[p])).dense for p in positions)
        dtypes = {self.results[p].dtype for p in positions}
        if (
            (len(positions) == 1 and dense)
            or len(dtypes) > 1
            or any(map(_has_bit, self.at(positions)))
        ):
            for position in positions:
                made_new = self.new if len(positions) == 1 else self.copy
                made_new(made, position, self.results[position])
            return
        buffer = buffer_of(first)
        if buffer.spec.dtype != first.dtype:
            for position in positions:
                self.copy(made, position, self.results[position])
            return
        made.bases.append((self.result_of(content(buffer)), buffer.spec))
        owner = len(made.bases) - 1
        for position in positions:
            t = self.results[position]
            is_own = self.shares and not t._is_view() and spec_and_offset(t) == (buffer.spec, 0)
            if is_own and owner not in dict(made.whole).values():
                made.whole.append((position, owner))
                continue
            lies = tuple(t.shape), t.stride(), t.storage_offset()
            made.shared.append((position, owner, *lies))
            self.note_detached(made, position, t)

    def note_detached(self, made: RecordedGraph, position: int, result: torch.Tensor) -> None:
        """Of what shares memory: `detach()` gives no view, and what needs no gradient."""
        if self.shares and not result._is_view():
            made.detached.append(position)

    def at(self, positions: list[int]) -> list[torch.Tensor]:
        return [self.results[p] for p in positions]

    def copy(self, made: RecordedGraph, position: int, result: torch.Tensor) -> None:
        """A result on a storage of its own, though the calls had it share another's."""
        if self.shares:
            raise CannotShare("A result shares memory with another tensor of another dtype.")
        self.new(made, position, result)

    def new(self, made: RecordedGraph, position: int, result: torch.Tensor) -> None:
        """A result on a storage of its own."""
        spec = self.traced[position] or spec_of_tensor(result)
        if not spec.dense:
            spec = spec_of_tensor(torch.empty_like(spec.meta()))
        made.fresh.append((position, self.result_of(value_of(result)), spec))

    def finish(self, made: RecordedGraph, name: str, precision: str | None) -> None:
        """The signature of all that is wanted."""
        checks = deferred_checks_of(self.scratch)
        if checks is not None:
            made.refusals = checks.refusals
            self.result_of(checks.value)
        if not self.wanted:
            return
        numbers = [number_on(self.scratch, value) for value in self.wanted]
        graph, used = _with_used_inputs(graph_of(self.scratch, numbers))
        if precision is not None:
            graph = with_precision(graph, precision)
        by_input = [n for n, i in enumerate(self.inputs) if isinstance(i, ScratchInput)]
        made.used = [by_input[i] for i in used if i < len(by_input)]
        made.uses_all = made.used == list(range(len(self.inputs)))
        numbers_of = {argument: -n for n, argument in enumerate(made.used, 1)}
        made.written = [(n, result, numbers_of.get(n)) for n, result, _ in made.written]
        made.constants = [self.scratch.inputs[i] for i in used if i >= len(by_input)]
        assert all(value.array is not None for value in made.constants)
        made.signature = signature_of(name, graph, self.scratch.n_draws)
        made.n_draws = self.scratch.n_draws
        made.code = [made.signature, *range(-1, -len(used) - 1, -1)]


def _layout(tensor: torch.Tensor) -> Any:
    return *spec_and_offset(tensor), tensor.is_conj(), tensor.is_neg()


def _has_bit(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _with_used_inputs(graph: Graph) -> tuple[Graph, list[int]]:
    """The graph without the inputs that nothing reads; the positions of the others."""
    read = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    used = [i for i in range(len(graph.inputs)) if -i - 1 in read]
    names = {-i - 1: -n - 1 for n, i in enumerate(used)}
    renamed = graph.renamed(names)
    return Graph(tuple(graph.inputs[i] for i in used), renamed.nodes, renamed.outputs), used


# By graph: as long as a compiled graph, a tape or a program has one.
_known: WeakValueDictionary[Any, Signature] = WeakValueDictionary()
_interning = threading.Lock()


def signature_of(name: str, graph: Graph, n_draws: int) -> Signature:
    """The one signature of this graph: compiled twice, it is one operator, and its programs are shared."""
    nodes = [
        (n.signature.number, n.inputs, n.outputs, tuple(map(number_key, n.numbers)), n.draw)
        for n in graph.nodes
    ]
    key = (graph.inputs, tuple(nodes), graph.outputs)
    with _interning:
        found = _known.get(key)
        if found is None:
            specs = graph.specs()
            found = _known[key] = intern(
                GraphOp(name, graph, n_draws),
                tuple(map(Slot, range(len(graph.inputs)))),
                {},
                graph.inputs,
                tuple(specs[v] for v in graph.outputs),
                random=n_draws > 0,
                returns="list",
                expand=lambda signature: graph,
            )
    return found
