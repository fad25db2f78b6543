"""An FX graph as one operator of the tape: run once on a scratch tape, on inputs that look like true ones.

What it records becomes a graph (`GraphOp`), its results become a template. Two calls whose inputs look alike
share both, so from the second on a call appends one node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch._ops import HigherOrderOperator
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from torch_pjrt.errors import LoweringError
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
    onto,
    spec_and_offset,
    state,
    value_of,
    with_precision,
    wrap,
)
from torch_pjrt.plugin import Graph, GraphOp, Signature, Slot, TensorSpec, spec_of
from torch_pjrt_dynamo.barrier import behind_barrier
from torch_pjrt_dynamo.compositions import COMPOSITIONS
from torch_pjrt_dynamo.control import CONTROL
from torch_pjrt_dynamo.lines import LinedCode, line_of
from torch_pjrt_dynamo.operators import CannotRecord, recorded
from torch_pjrt_dynamo.shared_keys import POSITION

Run = Callable[[torch.fx.GraphModule, Sequence[Any], LinedCode], list[Any]]


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


def record(
    module: torch.fx.GraphModule,
    arguments: Sequence[Any],
    name: str,
    *,
    apart: bool = False,
    precision: str | None = None,
    run: Run | None = None,
    above_autograd: bool = False,
) -> RecordedGraph:
    """Record the graph; `arguments` are objects of `InputSpec` for tensors, and numbers for numbers.

    `run` gives the results, if not as the nodes say. What is computed `apart` is computed again though
    another part of the program has computed the same. Products of float32 have the `precision`, if given.
    `above_autograd`: the calls are a user's, so that what we do for them before autograd is done; else they
    are operators that AOTAutograd has traced.

    Raises `CannotRecord`, which names the node at fault, where one needs the values of tensors.
    """
    scratch = Tape(nested=True, defers_checks=True)
    code = scratch.code = LinedCode()
    try:
        with _onto(scratch, above_autograd=above_autograd):
            inputs = [_Input.of(scratch, a) if isinstance(a, InputSpec) else a for a in arguments]
            tensors = [i.tensor if isinstance(i, _Input) else i for i in inputs]
            run = run or partial(_run, precision=precision)
            results = run(module, behind_barrier(tensors) if apart else tensors, code)
            traced = [
                _traced_spec(node, result)
                for node, result in zip(_outputs(module), results, strict=True)
            ]
            how = _Results(scratch, inputs, results, traced, above_autograd=above_autograd)
            try:
                return how.recorded(name, precision)
            except _CannotShare as error:
                raise CannotRecord(module.graph.output_node(), error) from error
    finally:
        deferred_checks_of(scratch)  # if it was not asked for


@contextmanager
def _onto(scratch: Tape, *, above_autograd: bool = False) -> Iterator[None]:
    """What is recorded in the block goes on that tape; what the caller has switched on is off."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_disable_current_modes())
        if not above_autograd:
            stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(onto(scratch))
        yield


@dataclass(slots=True, eq=False)
class _Input:
    """A tensor of the scratch tape that stands for an argument.

    strange     its strides are not the argument's: those have gaps, or overlap.
    value       what its buffer holds before the graph has run.
    """

    spec: InputSpec
    tensor: torch.Tensor
    value: Value
    strange: bool = False

    @classmethod
    def of(cls, scratch: Tape, given: InputSpec) -> _Input:
        spec, base = given.spec, given.base
        strange = base is None and not spec.dense
        if strange:
            like = torch.empty_like(spec.meta())
            spec = _spec_of(like)
        value = Value(base or spec, 0, None)
        scratch.take(value)
        tensor = wrap(value, base or spec)
        if base is not None and (base is not spec or given.offset):
            tensor = tensor.as_strided(spec.shape, spec.strides, given.offset)
        return cls(given, tensor, value, strange)


def _spec_of(tensor: torch.Tensor) -> TensorSpec:
    return spec_and_offset(tensor)[0]


def _run(
    module: torch.fx.GraphModule, tensors: Sequence[Any], code: LinedCode, precision: str | None
) -> list[Any]:
    """The graph's results. Intermediate tensors are let go of after their last use."""
    environment: dict[torch.fx.Node, Any] = {}
    given = iter(tensors)
    nodes = list(module.graph.nodes)
    last_use = {used: node for node in nodes for used in node.all_input_nodes}
    for node in nodes:
        if node.op == "placeholder":
            environment[node] = next(given)
            continue
        if node.op == "output":
            results = map_arg(node.args[0], environment.__getitem__)
            return list(results) if isinstance(results, (list, tuple)) else [results]
        position = node.meta.get(POSITION)
        if position is not None:
            state.tape.n_draws = position
        with code.at(line_of(node)):
            environment[node] = computed(module, node, environment, precision)
        if position is not None and state.tape.n_draws > position + 1:
            raise LoweringError(f"`{node.target}` draws more than once.")
        for used in node.all_input_nodes:
            if last_use[used] is node:
                del environment[used]
    raise AssertionError("a graph without an output")


def computed(
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    environment: Any,
    precision: str | None = None,
) -> Any:
    """The results of one node, whose inputs are in the environment; `precision` is for control flow in it."""
    args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
    if node.op == "get_attr":
        return _attribute(module, str(node.target))
    if node.op not in ("call_function", "call_method"):
        raise AssertionError(f"{node.op} in a graph of operators")
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if isinstance(node.target, HigherOrderOperator):
            if (composition := COMPOSITIONS.get(node.target.name())) is not None:
                return composition(node, args, kwargs)
            flow = CONTROL.get(node.target.name())
            if flow is None:
                raise LoweringError(f"Programs have no rule for `{node.target}`.")
            return flow(partial(_body, precision=precision), *args, **kwargs)
        return recorded(node.target, args, kwargs)
    except CannotRecord:
        raise
    except Exception as error:
        raise CannotRecord(node, error) from error


def _body(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, precision: str | None = None
) -> tuple[Graph, list[Value]]:
    """The graph of a body of control flow, and the constants that it reads after its inputs.

    `inputs` are specs for tensors, and numbers for numbers, which are constants too.
    """
    scratch = Tape(nested=True)
    scratch.code = code = LinedCode()
    with _onto(scratch):
        given = [
            _Input.of(scratch, InputSpec(i)).tensor if isinstance(i, TensorSpec) else i
            for i in inputs
        ]
        n_given = len(scratch.inputs)
        try:
            results = _run(module, given, code, precision)
        except CannotRecord as error:  # what cannot be recorded is the control flow
            raise LoweringError(f"A body of control flow needs `{error.node.target}`.") from error
        if not all(isinstance(r, torch.Tensor) for r in results):
            raise LoweringError("A body of control flow gives something that is no tensor.")
        outputs = [number_on(scratch, value_of(r)) for r in results]
    graph = graph_of(scratch, outputs)
    if precision is not None:
        graph = with_precision(graph, precision)
    return graph, scratch.inputs[n_given:]


def _attribute(module: torch.fx.GraphModule, target: str) -> Any:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _outputs(module: torch.fx.GraphModule) -> list[Any]:
    output = next(iter(reversed(module.graph.nodes)))
    results = output.args[0]
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _traced_spec(node: Any, result: Any) -> TensorSpec | None:
    """What PyTorch traced a result to look like: AOTAutograd counts on its strides."""
    traced = getattr(node, "meta", {}).get("val")
    if not isinstance(traced, torch.Tensor) or not isinstance(result, torch.Tensor):
        return None
    if any(n.__class__ is not int for n in (*traced.shape, *traced.stride())):
        return None  # known for this call only
    spec = spec_of(tuple(traced.shape), traced.dtype, traced.stride())
    return spec if (spec.shape, spec.dtype) == (tuple(result.shape), result.dtype) else None


class _CannotShare(Exception):
    """A result shares memory with another tensor in a way that a call does not make anew."""


class _Results:
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

    def recorded(self, name: str, precision: str | None) -> RecordedGraph:
        made = RecordedGraph(None, [], [None] * len(self.results))
        tensors = {id(i.tensor): n for n, i in enumerate(self.inputs) if isinstance(i, _Input)}
        behind = {
            id(buffer_of(i.tensor)): n for n, i in enumerate(self.inputs) if isinstance(i, _Input)
        }
        for n, i in enumerate(self.inputs):
            if isinstance(i, _Input) and buffer_of(i.tensor).value is not i.value:
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
        dense = all((self.traced[p] or _spec_of(self.results[p])).dense for p in positions)
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
            raise _CannotShare("A result shares memory with another tensor of another dtype.")
        self.new(made, position, result)

    def new(self, made: RecordedGraph, position: int, result: torch.Tensor) -> None:
        """A result on a storage of its own."""
        spec = self.traced[position] or _spec_of(result)
        if not spec.dense:
            spec = _spec_of(torch.empty_like(spec.meta()))
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
        by_input = [n for n, i in enumerate(self.inputs) if isinstance(i, _Input)]
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
