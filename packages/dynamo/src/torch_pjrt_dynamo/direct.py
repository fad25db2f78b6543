"""Graphs without gradients, recorded as Dynamo traced them, without AOTAutograd, which takes seconds.

An optimizer's step is such a graph, and whatever runs under `no_grad`. Its calls are made once, on tensors
of a scratch tape, as they would be without a compiler; what that records is what a call appends. Where
anything is not as simple as that (a gradient, which `gradients.py` records; control flow, a size that
varies, a tensor elsewhere or of another class, two inputs in one storage), `simple_graph` says None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from torch_pjrt.extend import buffer_of, is_pjrt, spec_and_offset
from torch_pjrt.plugin import spec_of
from torch_pjrt_dynamo.compiled import CompiledGraph
from torch_pjrt_dynamo.lines import name_of
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.recorded_graph import InputSpec

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_BUILTIN = (torch, torch._C._nn, torch._C._linalg, torch._C._special, torch._C._fft)  # pyright: ignore[reportAttributeAccessIssue]
_PYTHON = frozenset(("torch.nn.functional", "torch.functional"))
_OPERATORS = frozenset(f for f in vars(operator).values() if callable(f))
# They change what a tensor is and not its values, or look at more than those.
_NOT_OF_VALUES = frozenset(
    (
        *("as_strided_", "backward", "detach_", "requires_grad_", "resize_", "resize_as_", "retain_grad"),
        *("set_", "share_memory_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"),
        *("register_hook", "register_post_accumulate_grad_hook"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SimpleGraph:
    """What Dynamo traced, where each call is PyTorch's, of plain tensors of this device that share no memory.

    attributes   the tensors that the module holds, by name.
    tensors      these and the inputs of the first call.
    """

    module: GraphModule
    attributes: dict[str, Any]
    tensors: list[torch.Tensor]

    def of_inputs(self, *, with_gradients: bool = False) -> GraphModule:
        """The graph as a function of all its tensors."""
        return of_inputs(self.module, self.attributes, with_gradients=with_gradients)


def simple_graph(module: GraphModule, inputs: Sequence[Any]) -> SimpleGraph | None:
    """The graph, if it is simple.

    inputs   the tensors of the first call.
    """
    if not _is_simple(module):
        return None
    attributes = attributes_of(module)
    tensors = [*attributes.values(), *inputs]
    with _disable_current_modes():
        return SimpleGraph(module, attributes, tensors) if are_apart(tensors) else None


def without_autograd(simple: SimpleGraph, precision: str | None) -> Callable[..., Any] | None:
    """The graph compiled as it is; None if a call is differentiated, or needs values."""
    if _has_gradients(simple.module):
        return None
    with _disable_current_modes():
        graph = DirectGraph(simple.of_inputs(), name_of(simple.module, "graph"), precision)
        try:
            graph.record_for(simple.tensors)
        except CannotRecord:
            return None
    return _WithAttributes(graph, list(simple.attributes.values()))


class DirectGraph(CompiledGraph):
    """A graph of PyTorch's functions and methods, none of which needs a gradient."""

    above_autograd = True

    def __init__(self, module: GraphModule, name: str, precision: str | None) -> None:
        super().__init__(module, name, precision=precision)
        self._sees_storage = any(
            "as_strided" in getattr(n.target, "__name__", str(n.target)) for n in module.graph.nodes
        )

    def record_for(self, args: list[Any]) -> None:
        """Record it for tensors that look like these. Raises `CannotRecord` where it needs their values."""
        self._record(tuple(self._look_of(x) for x in args))

    def _look_of(self, x: torch.Tensor) -> Any:
        """What a call takes the tensor for; its value is not read, which would be a node of its own."""
        buffer = buffer_of(x)
        if self._sees_storage:
            spec, offset = spec_and_offset(x)
            return InputSpec, InputSpec(spec, buffer.spec, offset)
        return spec_of(x.shape, x.dtype, x.stride()) if buffer.viewed else buffer.spec

    def cut_at(self, error: CannotRecord) -> Callable[[list[Any]], list[Any]]:
        """From now on the graph runs call by call: for inputs that look otherwise it needs their values."""
        self._parts = lambda args: list(self.module(*args))
        return self._parts


class _WithAttributes:
    """A function of a graph's own inputs, which is given the tensors that the module held, too."""

    def __init__(self, graph: DirectGraph, attributes: list[torch.Tensor]) -> None:
        self.graph = graph
        self.attributes = attributes

    def __call__(self, *args: Any) -> list[Any]:
        given = [*self.attributes, *args]
        is_enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return self.graph(given)
        finally:
            torch._C._set_grad_enabled(is_enabled)


def _is_simple(module: GraphModule) -> bool:
    """Whether each call is PyTorch's, of known sizes on this device."""
    if torch.is_autocast_enabled("pjrt") or torch.is_autocast_enabled("cpu"):
        return False
    return all(
        _is_known_call(node) and all(map(_is_plain, _values(node)))
        for node in module.graph.nodes
        if node.op != "output" and node.target is not torch._C._set_grad_enabled
    )


def _has_gradients(module: GraphModule) -> bool:
    """Whether a call is differentiated."""
    grad = torch.is_grad_enabled()
    for node in module.graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            grad = node.args[0]
            continue
        is_call = node.op not in ("placeholder", "get_attr", "output")
        if grad and is_call and any(x.requires_grad for x in _values(node)):
            return True
    return False


def are_apart(tensors: Sequence[Any]) -> bool:
    """Whether all are tensors of this device, of no other class, and each has a storage of its own."""
    if not all(type(x) in _PLAIN and is_pjrt(x) for x in tensors):
        return False
    return len({id(buffer_of(x)) for x in tensors}) == len(tensors)


def _is_known_call(node: Node) -> bool:
    target: Any = node.target
    if node.op == "call_method":
        return target not in _NOT_OF_VALUES and callable(getattr(torch.Tensor, target, None))
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr")
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten"
    name = getattr(target, "__name__", "")
    if name in _NOT_OF_VALUES:
        return False
    if isinstance(target, BuiltinFunctionType) and target not in _OPERATORS:
        return any(getattr(where, name, None) is target for where in _BUILTIN)
    return target in _OPERATORS or getattr(target, "__module__", "") in _PYTHON


def _values(node: Node) -> Iterator[Any]:
    """The tensors, and whatever else, that Dynamo traced the node as. Assignment to elements has none."""
    if node.target is operator.setitem:
        return iter(())
    return iter(tree_leaves(node.meta.get("example_value", False)))


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, FakeTensor)
        and value.device.type == "pjrt"
        and value.layout == torch.strided
        and not value.is_complex()
        and all(n.__class__ is int for n in (*value.shape, *value.stride()))
    )


def attributes_of(module: GraphModule) -> dict[str, Any]:
    """The tensors that the graph reads from its module, by name."""
    names = [str(n.target) for n in module.graph.nodes if n.op == "get_attr"]
    return {name: operator.attrgetter(name)(module) for name in names}


def of_inputs(
    module: GraphModule, attributes: dict[str, Any], *, with_gradients: bool = False
) -> GraphModule:
    """The module as a function of what it holds, and then of its inputs.

    Unless it is `with_gradients`, it does not say where they are switched on and off.
    """
    graph = Graph()
    held = {name: graph.placeholder(f"held_{i}") for i, name in enumerate(attributes)}
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            copies[node] = held[str(node.target)]
        elif node.op == "output":
            results = map_arg(node.args[0], copies.__getitem__)
            graph.output(results).meta = dict(node.meta)
        elif with_gradients or node.target is not torch._C._set_grad_enabled:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphModule(module, graph)
