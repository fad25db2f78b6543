"""Compiled functions that PyTorch keeps on disk, so that a later process need not trace them.

PyTorch has two ways: `torch.compile(f, fullgraph=True).aot_compile(...)` makes a file of one function, and
`TORCH_CACHING_PRECOMPILE=1` keeps what Dynamo did for all of them. Either asks the backend for bytes. We give
the graph as Dynamo traced it; who loads it compiles it at its first call, and finds the programs in the
folder of our own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
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
from torch_pjrt_dynamo.lines import short_stack

Compile = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]

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
    how        what `compiling` needs to compile it: to be pickled.
    compiling  a module's function that gives the compiler for a `how`: as it is called in a later process.
    """

    def __init__(
        self,
        kept: bytes | None,
        how: Any,
        compiling: Callable[[Any], Compile],
        objection: str = "",
    ) -> None:
        self.kept = kept
        self.how = how
        self.compiling = compiling
        self.objection = objection
        self._compiled: Callable[..., Any] | None = None

    @classmethod
    def of(cls, module: GraphModule, how: Any, compiling: Callable[[Any], Compile]) -> Self:
        """Of a graph that nobody has changed yet. It still has to be told how it runs in this process."""
        objection = _objection(module)
        if objection:
            return cls(None, how, compiling, objection)
        try:
            options = graph_pickler.Options(ops_filter=None, node_metadata_key_filter=None)
            kept = graph_pickler.GraphPickler.dumps(_bare(module), options)
        except Exception as error:  # what a pickle raises depends on what is in it
            return cls(None, how, compiling, f"{type(error).__name__}: {error}")
        return cls(kept, how, compiling)

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
        return pickle.dumps((fn.kept, fn.how, fn.compiling))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Self:
        """What `serialize_compile_artifacts` was given, in another process."""
        return cls(*pickle.loads(data))

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled
        if compiled is None:
            assert self.kept is not None
            compiled = self._compiled = self.compiling(self.how)(_loaded(self.kept), args)
        return compiled(*args)


class _Artifact(BackendCacheArtifact[KeptGraph]):
    """A kept graph in PyTorch's cache."""

    def after_deserialization(self) -> KeptGraph:
        return KeptGraph.deserialize_compile_artifacts(self.content)


def _objection(module: GraphModule) -> str:
    for node in module.graph.nodes:
        if "kernel_idx" in node.kwargs:
            return f"`{node.name}` is a Triton kernel, by its number in this process"
        for x in tree_leaves(node.meta.get(_EXAMPLE)) if node.op == "placeholder" else ():
            sizes = (*x.shape, *x.stride()) if isinstance(x, torch.Tensor) else (x,)
            if any(isinstance(n, torch.SymInt | torch.SymFloat | torch.SymBool) for n in sizes):
                return f"the input `{node.name}` has a size that varies"
    inner = (m for m in module.children() if isinstance(m, GraphModule))
    return next(filter(None, map(_objection, inner)), "")


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
    held: dict[str, Any] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        value = getattr(module, str(node.target))
        held[str(node.target)] = _bare(value) if isinstance(value, GraphModule) else value
    return GraphModule(held, graph)


def _look_of(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    shape, stride = tuple(value.shape), value.stride()
    return _Look(shape, stride, value.dtype, value.device, value.layout, value.requires_grad)


def _loaded(kept: bytes) -> GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    module: Any = graph_pickler.GraphPickler.loads(kept, mode)
    with mode:
        _fake_again(module)
    return module


def _fake_again(module: GraphModule) -> None:
    for node in module.graph.nodes:
        if _EXAMPLE in node.meta:
            node.meta[_EXAMPLE] = tree_map(_fake, node.meta[_EXAMPLE])
    for inner in module.children():
        if isinstance(inner, GraphModule):
            _fake_again(inner)
    module.recompile()


def _fake(value: Any) -> Any:
    if not isinstance(value, _Look):
        return value
    made = torch.empty_strided(
        value.shape, value.stride, dtype=value.dtype, device=value.device, layout=value.layout
    )
    return made.requires_grad_(value.requires_grad)
