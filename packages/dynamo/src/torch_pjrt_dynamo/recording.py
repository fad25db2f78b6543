"""An FX graph as one operator of the tape: run once on a scratch tape, on inputs that look like true ones.

What it records becomes a graph (`GraphOp`), its results become a template. Two calls whose inputs look alike
share both, so from the second on a call appends one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import (
    Tape,
    Value,
    deferred_checks_of,
    graph_of,
    number_on,
    onto,
    state,
    value_of,
    with_precision,
)
from torch_pjrt.plugin import Graph, TensorSpec, spec_of
from torch_pjrt_dynamo.barrier import behind_barrier
from torch_pjrt_dynamo.compositions import COMPOSITIONS
from torch_pjrt_dynamo.control import CONTROL
from torch_pjrt_dynamo.lines import LinedCode, line_of
from torch_pjrt_dynamo.operators import CannotRecord, recorded
from torch_pjrt_dynamo.recorded_graph import (
    CannotShare,
    InputSpec,
    RecordedGraph,
    Results,
    ScratchInput,
)
from torch_pjrt_dynamo.shared_keys import POSITION

Run = Callable[[torch.fx.GraphModule, Sequence[Any], LinedCode], list[Any]]


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
        with onto_scratch(scratch, above_autograd=above_autograd):
            inputs = [
                ScratchInput.of(scratch, a) if isinstance(a, InputSpec) else a for a in arguments
            ]
            tensors = [i.tensor if isinstance(i, ScratchInput) else i for i in inputs]
            run = run or partial(run_nodes, precision=precision)
            results = run(module, behind_barrier(tensors) if apart else tensors, code)
            traced = [
                _traced_spec(node, result)
                for node, result in zip(_outputs(module), results, strict=True)
            ]
            how = Results(scratch, inputs, results, traced, above_autograd=above_autograd)
            try:
                return how.recorded(name, precision)
            except CannotShare as error:
                raise CannotRecord(module.graph.output_node(), error) from error
    finally:
        deferred_checks_of(scratch)  # if it was not asked for


@contextmanager
def onto_scratch(scratch: Tape, *, above_autograd: bool = False) -> Iterator[None]:
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


def run_nodes(
    module: torch.fx.GraphModule,
    tensors: Sequence[Any],
    code: LinedCode,
    precision: str | None,
    after: Callable[[torch.fx.Node, Any], None] = lambda node, result: None,
) -> list[Any]:
    """The graph's results. Intermediate tensors are let go of after their last use.

    `after` is called with each node and its result.
    """
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
        after(node, environment[node])
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
    with onto_scratch(scratch):
        given = [
            ScratchInput.of(scratch, InputSpec(i)).tensor if isinstance(i, TensorSpec) else i
            for i in inputs
        ]
        n_given = len(scratch.inputs)
        try:
            results = run_nodes(module, given, code, precision)
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
