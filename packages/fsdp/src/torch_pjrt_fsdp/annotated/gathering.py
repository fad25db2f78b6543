"""Parameters gathered for a block's forward, and again for its backward.

    p ─ fsdp.parts ─ cast ─ whole     its gradient comes back in parts, summed in `reduce_dtype`
    p ─ fsdp.parts ─ fsdp.again ─ ... the same behind a barrier, so that the first gather is not kept for it

What autograd keeps of a gathered parameter for backward is the parameter itself, by a hook on saved tensors.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torch_pjrt.extend import (
    Buffer,
    annotate,
    buffer_of,
    define_annotation,
    is_pjrt,
    spec_and_offset,
)
from torch_pjrt_fsdp.annotated.axes import Axes
from torch_pjrt_fsdp.annotated.offloading import NOTHING, HostOffload
from torch_pjrt_spmd import marks
from torch_pjrt_spmd.memory_kinds import HOST

# A parameter before it is gathered; its gradient, that is to lie as it does. Arguments: a mesh, a spec, the
# axes that batches are spread along, the dtype that gradients are added up in or None.
PARTS = "fsdp.parts"
# The same value, that no compiler takes for the one of forward.
AGAIN = "fsdp.again"
# A gathered parameter in a graph of Dynamo's, which backward gathers again. Arguments: a mesh, a spec.
GATHERED = "fsdp.gathered"


def _in_parts(x: Any, *args: Any) -> Any:
    return marks.constrained(x, *args[:4])


def _apart(x: Any) -> Any:
    from jax import lax

    return lax.optimization_barrier(x)


define_annotation(PARTS, _in_parts)
define_annotation(AGAIN, _apart, gradient=False)
define_annotation(GATHERED, marks.constrained, gradient=False, again=AGAIN)


@dataclass(frozen=True)
class Lying:
    """How a parameter lies, and how it is gathered.

    spec    of its parts, on all axes of the mesh.
    dtype   that it is gathered in; None: its own. reduce_dtype: that its gradients are added up in.
    offload what of it lies in the host's memory.
    """

    axes: Axes
    spec: tuple[Any, ...]
    dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    offload: HostOffload = NOTHING

    @property
    def memory_kind(self) -> str | None:
        """The memory that the parameter lies in; None: the chips'."""
        return HOST if self.offload.parameters else None

    def gathered(self, p: torch.Tensor, again: bool) -> torch.Tensor:
        """The parameter, whole along the axes it is spread along, for computation."""
        parts = self.written_parts()
        x = annotate(p, PARTS, *parts)
        if again:
            x = annotate(x, AGAIN)
        if self.dtype is not None and x.dtype != self.dtype and x.is_floating_point():
            x = annotate(x.to(self.dtype), marks.KIND_FORWARD, *parts[:4])
        return annotate(x, marks.KIND_FORWARD, *self.written_whole())

    def written_parts(self) -> tuple[Any, ...]:
        """The arguments of `PARTS`; the first four are a mesh and the spec."""
        mesh = self.axes.mesh.written()
        return (*mesh, self.spec, self.axes.batch, _name(self.reduce_dtype))

    def written_whole(self) -> tuple[Any, ...]:
        """A mesh, and the spec of what is gathered."""
        return (*self.axes.mesh.written(), self.axes.without(self.spec))


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def in_backward() -> bool:
    """Whether this thread runs a backward: what is computed there, a checkpoint computes again."""
    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportAttributeAccessIssue]


class _Gathered(threading.local):
    """What this thread has gathered: of buffers and of autograd's nodes, from what."""

    def __init__(self) -> None:
        self.buffers: weakref.WeakKeyDictionary[Buffer, _Source] = weakref.WeakKeyDictionary()
        self.nodes: dict[Any, _Source] = {}


@dataclass(frozen=True, eq=False)
class _Source:
    parameter: torch.Tensor
    lying: Lying


_gathered = _Gathered()


def gathered(p: torch.Tensor, lying: Lying, resharded: bool) -> torch.Tensor:
    """The parameter gathered.

    resharded  backward is to gather it again. Not within a backward, which is when a checkpoint computes
               again what backward needs: that is the second time already.
    """
    again = in_backward()
    whole = lying.gathered(p, again)
    if resharded and is_pjrt(whole) and torch.is_grad_enabled():
        source = _Source(p, lying)
        _gathered.buffers[buffer_of(whole)] = source
        if whole.grad_fn is not None:
            _gathered.nodes[whole.grad_fn] = source
    return whole


@dataclass(frozen=True)
class _Kept:
    """What autograd keeps instead of a gathered parameter, or of a view or a cast of it."""

    source: _Source
    version: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def again(self) -> torch.Tensor:
        p = self.source.parameter
        if p._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: a parameter of {list(p.shape)} is at version {p._version}; expected version "
                f"{self.version} instead. It was gathered for forward, and would be gathered for backward: "
                "step the optimizer after backward"
            )
        with torch.no_grad():
            whole = self.source.lying.gathered(p.detach(), again=True)
            if whole.dtype != self.dtype:
                whole = whole.to(self.dtype)
            return whole.as_strided(self.shape, self.strides, self.offset)


# Between a gathered parameter and what an operator saves of it, by autograd's names of its nodes.
_VIEWS = frozenset(
    f"{name}Backward0"
    for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Unsqueeze", "Squeeze", "Alias")
)
_CAST = "ToCopyBackward0"


def _source_of(tensor: torch.Tensor) -> _Source | None:
    if not is_pjrt(tensor) or not (_gathered.buffers or _gathered.nodes):
        return None
    found = _gathered.buffers.get(buffer_of(tensor))
    if found is not None or not _gathered.nodes:
        return found
    # Autocast casts what was gathered, which makes another buffer.
    node: Any = tensor.grad_fn
    for _ in range(4):
        name = type(node).__name__
        if name not in _VIEWS and name != _CAST:
            return None
        node = node.next_functions[0][0]
        if name == _CAST:
            return _gathered.nodes.get(node)
    return None


class Resharding:
    """A block of code, a forward, for whose backward gathered parameters are gathered again."""

    def __init__(self) -> None:
        self._hooks: Any = None

    def __enter__(self) -> None:
        outer = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
        if outer is not None and isinstance(outer[0], _Pack):
            return
        self._hooks = torch.autograd.graph.saved_tensors_hooks(
            _Pack(None if outer is None else outer[0]), _Unpack(None if outer is None else outer[1])
        )
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.__exit__(*error)
            _gathered.nodes.clear()


@dataclass(frozen=True)
class _Pack:
    """What is saved: of gathered parameters a `_Kept`, of the rest what hooks around these make of it."""

    outer: Callable[[torch.Tensor], Any] | None

    def __call__(self, tensor: torch.Tensor) -> Any:
        source = _source_of(tensor)
        if source is None:
            return tensor if self.outer is None else _ByOuter(self.outer(tensor))
        spec, offset = spec_and_offset(tensor)
        return _Kept(
            source,
            source.parameter._version,
            tensor.dtype,
            tuple(spec.shape),
            tuple(spec.strides),
            offset,
        )


@dataclass(frozen=True)
class _ByOuter:
    packed: Any


@dataclass(frozen=True)
class _Unpack:
    outer: Callable[[Any], torch.Tensor] | None

    def __call__(self, kept: Any) -> torch.Tensor:
        if isinstance(kept, _Kept):
            return kept.again()
        if isinstance(kept, _ByOuter):
            assert self.outer is not None
            return self.outer(kept.packed)
        return kept
