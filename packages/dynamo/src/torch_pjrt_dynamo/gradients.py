"""Graphs with gradients, recorded as Dynamo traced them: without AOTAutograd, which takes seconds.

The calls are made once, on tensors of a scratch tape, and then PyTorch's own autograd computes the gradients
of the results (`recording_gradients.py`). So a gradient is computed as it is without a compiler, by the same
operators of the same values, and forward keeps for backward what it keeps without one.

Where anything is not as simple as that (what `direct.py` says, results that share memory with each other or
with an argument, writes to what has a gradient, hooks around saved tensors), `with_gradients` says None, and
AOTAutograd traces the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch._dynamo import compiled_autograd
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from torch_pjrt import config
from torch_pjrt.extend import Value, cut, state, value_of
from torch_pjrt.plugin import TensorSpec
from torch_pjrt_dynamo.compiled import called
from torch_pjrt_dynamo.direct import DirectGraph, SimpleGraph
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.recorded_graph import InputSpec
from torch_pjrt_dynamo.recording_gradients import NotSoSimple, RecordedForward, record_both


def with_gradients(simple: SimpleGraph, precision: str | None) -> Callable[..., Any] | None:
    """What Dynamo traced, compiled as it is with its backward; None if AOTAutograd is to trace it."""
    if not torch.is_grad_enabled() or _is_watched():
        return None
    with _disable_current_modes():
        whole = simple.of_inputs(with_gradients=True)
        compiled = _WithAttributes(whole, list(simple.attributes.values()), precision)
        try:
            compiled.graph_for(simple.tensors).record_for(simple.tensors)
        except CannotRecord:
            return None
    return compiled


def _is_watched() -> bool:
    """Whether somebody looks at what autograd does meanwhile, which compiled code would hide from him."""
    return (
        torch.is_anomaly_enabled()
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # pyright: ignore[reportAttributeAccessIssue]
        or torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        or compiled_autograd.compiled_autograd_enabled
        or torch._dynamo.config.compiled_autograd
    )


class GraphWithGradients(DirectGraph):
    """A graph of PyTorch's functions and methods, and the gradients of its results.

    needs   which arguments have a gradient.
    """

    def __init__(self, module: GraphModule, needs: list[bool], precision: str | None) -> None:
        super().__init__(module, name_of(module, "forward"), precision)
        self.needs = needs

    def __call__(self, args: list[Any]) -> Any:
        if self._parts is not None:
            return self._parts(args)
        tape = state.tape
        if tape.size > config.tape_limit:
            cut(tape)
        try:
            found, values = self._found(args)
        except CannotRecord as error:
            return self.cut_at(error)(args)
        # To what these come from, backward would go on; it may be gone.
        for i in cast(RecordedForward, found).unreached:
            args[i] = args[i].detach()
        results = _Differentiated.apply(found, values, *args)
        args.clear()
        return results

    def _record(self, key: tuple[Any, ...]) -> RecordedForward:
        if self._sees_storage or not all(x.__class__ is TensorSpec for x in key):
            raise CannotRecord(self.module.graph.output_node(), NotSoSimple("It sees storages."))
        found = self.recorded[key] = record_both(
            self.module, [InputSpec(x) for x in key], self.needs, self.precision
        )
        return found


class _WithAttributes:
    """A function of a graph's own inputs, which is given the tensors that the module held, too.

    A parameter may be frozen, or thawed, between two calls: Dynamo does not look at those that are held.
    """

    def __init__(
        self, module: GraphModule, attributes: list[torch.Tensor], precision: str | None
    ) -> None:
        self.module = module
        self.attributes = attributes
        self.precision = precision
        self.graphs: dict[tuple[bool, ...], GraphWithGradients] = {}

    def __call__(self, *args: Any) -> Any:
        given = [*self.attributes, *args]
        return self.graph_for(given)(given)

    def graph_for(self, tensors: list[torch.Tensor]) -> GraphWithGradients:
        """The graph for arguments that need gradients as these do."""
        needs = tuple([x.requires_grad for x in tensors])
        graph = self.graphs.get(needs)
        if graph is None:
            graph = self.graphs[needs] = GraphWithGradients(
                self.module, list(needs), self.precision
            )
        return graph


class _Differentiated(torch.autograd.Function):
    """A call of forward, and its backward."""

    @staticmethod
    def forward(ctx: Any, found: RecordedForward, values: list[Value], *args: Any) -> Any:
        results = called(found, list(args), values)
        n_users = found.n_users
        ctx.save_for_backward(*[args[i] for i in found.kept], *results[n_users:])
        ctx.found = found
        ctx.set_materialize_grads(False)
        del results[n_users:]
        if found.others:
            ctx.mark_non_differentiable(*[results[i] for i in found.others])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if state.tape.size > config.tape_limit:
            cut(state.tape)
        found: RecordedForward = ctx.found
        given = [_or_zeros(gradients[i], spec) for i, spec in found.different]
        saved = ctx.saved_tensors
        made = called(found.backward, [], [value_of(x) for x in (*saved, *given)])
        if torch.is_grad_enabled() and any(x.requires_grad for x in (*saved, *given)):
            made = _refusing(made)
        return None, None, *made


def _or_zeros(gradient: torch.Tensor | None, spec: TensorSpec) -> torch.Tensor:
    if gradient is not None:
        return gradient
    return torch.zeros(spec.shape, dtype=spec.dtype, device="pjrt")


def _refusing(gradients: list[Any]) -> list[Any]:
    """The same; whoever differentiates them is told that it cannot be done."""
    tensors = [x for x in gradients if x is not None]
    error = torch._C._functions.DelayedError(  # pyright: ignore[reportAttributeAccessIssue]
        "torch.compile does not support the gradient of a gradient; "
        "call what is to be differentiated twice without a compiler",
        len(tensors),
    )
    refusing = error(*[x.detach().requires_grad_() for x in tensors])
    left = iter(refusing if isinstance(refusing, tuple) else (refusing,))
    return [None if x is None else next(left) for x in gradients]
