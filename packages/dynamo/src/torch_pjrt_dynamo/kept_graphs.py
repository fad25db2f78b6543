"""Compiled functions that PyTorch keeps on disk, so that a later process need not trace them.

PyTorch has two ways: `torch.compile(f, fullgraph=True).aot_compile(...)` makes a file of one function, and
`TORCH_CACHING_PRECOMPILE=1` keeps what Dynamo did for all of them. Either asks the backend for bytes. We give
the graph as Dynamo traced it; who loads it compiles it at its first call, and finds the programs in the
folder of our own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx import _graph_pickler as graph_pickler
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt.errors import UnsupportedError
from torch_pjrt_dynamo.direct import attributes_of
from torch_pjrt_dynamo.lines import short_stack

Compile = Callable[..., Callable[..., Any]]

_EXAMPLE = "example_value"


@dataclass(frozen=True, slots=True)
class _Look:
    """What a value was traced as, of which there is a pickle."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool


class KeptGraph(SerializableCallable):
    """A graph of Dynamo's as a function that can be kept.

    kept       the graph as bytes; None where `objection` says why there are none.
    compile    what compiles it: a module's function of the graph, a call's arguments, and what is in `how`.
    how        what is pickled with it.
    """

    def __init__(
        self, kept: bytes | None, compile: Compile, how: tuple[Any, ...], objection: str = ""
    ) -> None:
        self.kept = kept
        self.compile = compile
        self.how = how
        self.objection = objection
        self._compiled: Callable[..., Any] | None = None

    @classmethod
    def of(cls, module: GraphModule, compile: Compile, how: tuple[Any, ...]) -> Self:
        """Of a graph that nobody has changed yet. It still has to be told how it runs in this process."""
        objection = _objection(module)
        if objection:
            return cls(None, compile, how, objection)
        try:
            options = graph_pickler.Options(ops_filter=None, node_metadata_key_filter=None)
            kept = graph_pickler.GraphPickler.dumps(_bare(module), options)
        except Exception as error:  # what a pickle raises depends on what is in it
            return cls(None, compile, how, f"{type(error).__name__}: {error}")
        return cls(kept, compile, how)

    def running(self, compiled: Callable[..., Any], key: str) -> Self:
        """The same, compiled in this process; PyTorch's cache of what Dynamo did gets it by the key."""
        self._compiled = compiled
        if torch._dynamo.config.caching_precompile and self.kept is not None:
            content = self.serialize_compile_artifacts(self)
            PrecompileContext.record_artifact(_Artifact(key, content))
        return self

    @classmethod
    def serialize_compile_artifacts(cls, fn: Self) -> bytes:
        """As bytes. Raises `UnsupportedError` where the graph cannot be kept."""
        if fn.kept is None:
            raise UnsupportedError(
                "This compiled function cannot be kept in a file.",
                saw=fn.objection,
                expected="tensors of known sizes, and functions that another process finds, too",
                hint="`torch.compile(f, dynamic=False)` fixes sizes",
            )
        return pickle.dumps((fn.kept, fn.compile, fn.how))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Self:
        """What `serialize_compile_artifacts` was given, in another process."""
        return cls(*pickle.loads(data))

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            assert self.kept is not None
            compiled = self._compiled = self.compile(_loaded(self.kept), args, *self.how)
        return compiled(*args)


class _Artifact(BackendCacheArtifact[KeptGraph]):
    """A kept graph in PyTorch's cache."""

    def after_deserialization(self) -> KeptGraph:
        return KeptGraph.deserialize_compile_artifacts(self.content)


def _objection(module: GraphModule) -> str:
    for node in (node for graph in _graphs_of(module) for node in graph.graph.nodes):
        if "kernel_idx" in node.kwargs:
            return f"`{node.name}` is a Triton kernel, by its number in this process"
        for x in tree_leaves(node.meta.get(_EXAMPLE)) if node.op == "placeholder" else ():
            sizes = (*x.shape, *x.stride()) if isinstance(x, torch.Tensor) else (x,)
            if any(isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool) for n in sizes):
                return f"the input `{node.name}` has a size that varies"
    return ""


def _graphs_of(module: GraphModule) -> list[GraphModule]:
    """The module, and all graphs within it."""
    return [m for m in module.modules() if isinstance(m, GraphModule)]


def _bare(module: GraphModule) -> GraphModule:
    """The same graph with what is needed of what Dynamo noted about its nodes, and of that what pickles."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        copy = copies[node] = graph.node_copy(node, copies.__getitem__)
        copy.meta = {"stack_trace": node.meta.get("stack_trace")}
        if _EXAMPLE in node.meta:
            copy.meta[_EXAMPLE] = tree_map(_look_of, node.meta[_EXAMPLE])
        if stack := short_stack(node):
            copy.meta["nn_module_stack"] = stack
    held = {
        name: _bare(value) if isinstance(value, GraphModule) else value
        for name, value in attributes_of(module).items()
    }
    return GraphModule(held, graph)


def _look_of(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    shape, stride = tuple(value.shape), value.stride()
    return _Look(shape, stride, value.dtype, value.device, value.layout, value.requires_grad)


def _loaded(kept: bytes) -> GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    module: Any = graph_pickler.GraphPickler.loads(kept, mode)
    for graph in _graphs_of(module):
        with mode:
            for node in graph.graph.nodes:
                if _EXAMPLE in node.meta:
                    node.meta[_EXAMPLE] = tree_map(_fake, node.meta[_EXAMPLE])
        graph.recompile()
    return module


def _fake(value: Any) -> Any:
    if not isinstance(value, _Look):
        return value
    made = torch.empty_strided(
        value.shape, value.stride, dtype=value.dtype, device=value.device, layout=value.layout
    )
    return made.requires_grad_(value.requires_grad)
