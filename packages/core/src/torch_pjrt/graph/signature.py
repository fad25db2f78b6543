"""A signature: one operator called with one pattern of shapes, dtypes and static arguments.

All that is the same for two calls lives here, found by one dictionary look-up; what differs (which
values, which numbers) goes on the tape. Signatures are interned, so they compare by identity, and equal
code of two tapes means an equal program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import torch

from torch_pjrt.caches import Interned
from torch_pjrt.graph.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from torch_pjrt.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the arguments have the `index`-th tensor.

    >>> from torch_pjrt.extend import graph_of, recorded
    >>> with recorded(lambda x: x * x, [torch.empty(3)]) as step:
    ...     graph_of(step.tape, step.outputs).nodes[0].signature.args
    (Slot(index=0), Slot(index=1))
    """

    index: int


@dataclass(frozen=True, slots=True)
class NumberSlot:
    """Where the arguments have the `index`-th Python number; `kind` is int or float.

    >>> from torch_pjrt.extend import graph_of, recorded
    >>> with recorded(lambda x: x * 2.5, [torch.empty(3)]) as step:
    ...     graph_of(step.tape, step.outputs).nodes[0].signature.args
    (Slot(index=0), NumberSlot(index=0, kind=<class 'float'>))
    """

    index: int
    kind: type


@dataclass(frozen=True, slots=True)
class InternalOp:
    """An operator that PyTorch does not have: reading or writing a view, for example."""

    name: str

    def __str__(self) -> str:
        return self.name


READ, WRITE = InternalOp("pjrt.read"), InternalOp("pjrt.write")
# What it is given; the compiler cannot tell, and so merges nothing across it.
OPTIMIZATION_BARRIER = InternalOp("pjrt.optimization_barrier")
# The first input with the second added at one index along a dim.
ADDED_AT = InternalOp("pjrt.added_at")
# Which check was the first to find something, and what it found (`run/deferred_checks.py`).
OUTSIDE = InternalOp("pjrt.outside")


@dataclass(frozen=True, slots=True, eq=False)
class FunctionOp:
    """An operator that one function is: each object is an operator of its own.

    compute  takes the inputs as JAX arrays and gives the results, as many as the signature says.
    of       what else it depends on, and is called with, before the inputs: plain values, specs, `Graph`s.
             The function is then one that its module has under its name.

    Programs with one are kept on disk only where `of` is given. The example records a barrier: XLA moves
    nothing across it.

        >>> barrier = FunctionOp(
        ...     "mine.barrier", lambda *arrays: jax.lax.optimization_barrier(arrays)
        ... )
        >>> x = value_of(torch.ones(3, device="pjrt"))
        >>> signature = intern(barrier, (Slot(0),), {}, (x.spec,), (x.spec,), returns="list")
        >>> [y] = record(signature, [x], [])
        >>> host_array(y)
        array([1., 1., 1.], dtype=float32)
    """

    name: str
    compute: Callable[..., Sequence[Any]]
    of: tuple[Any, ...] | None = None

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        return self.compute(*(self.of or ()), *inputs)

    def __str__(self) -> str:
        return self.name


class JointOp(FunctionOp):
    """One that other processes take part in (`compile/joint.py`): its function runs under `shard_map`.

    >>> total = JointOp("docs.total", lambda x: [jax.lax.psum(x, "ranks")], ())
    >>> str(total), isinstance(total, FunctionOp)
    ('docs.total', True)
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class GraphOp:
    """An operator that a recorded graph is, to be put in its place: what a compiler made of a function.

    The numbers in the graph are constants, and its draws are counted from 0; each has its line, where known.

        >>> from torch_pjrt.testing.graphs import parse
        >>> graph = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.sin.default(i0)
        ...     return v0''')
        >>> op = GraphOp("mine.block", graph)
        >>> str(op), op.n_draws
        ('mine.block', 0)
    """

    name: str
    graph: Graph
    n_draws: int = 0

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, weakref_slot=True, eq=False)
class Signature:
    """One interned call pattern.

    number     no other signature of this process has it, nor had it.
    op         the functional overload (or `InternalOp`) whose rule computes it.
    args, kwargs    the arguments, `Slot` and `NumberSlot` marking what the tape supplies.
    specs      what the input tensors look like, by slot index.
    outs       what the results look like.
    numbers    the kinds (int, float) of the `NumberSlot`s, by index.
    random     the node draws random numbers: its code ends with the draw.
    returns    "tensor", "tuple" or "list": how PyTorch returns the results.
    expansion  the graph of simpler operators that stands for it, where it has no rule of its own.
    dropped    for each result: False, True if it is None, or the number it is; none: all are there.
    precision  of products of float32 in it, by PyTorch's name; None for the one that is in force.
    default_dtype    PyTorch's when the operator was called: its rule is traced later, when another may be in
               force. Always float32 where `op` is none of PyTorch's.

        >>> from torch_pjrt.testing.graphs import parse
        >>> graph = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.sin.default(i0)
        ...     return v0''')
        >>> signature = graph.nodes[0].signature
        >>> signature, signature.args, signature.outs[0].shape
        (aten.sin.default(float32[3]), (Slot(index=0),), (3,))
    """

    number: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    specs: tuple[TensorSpec, ...]
    outs: tuple[TensorSpec, ...]
    numbers: tuple[type, ...]
    random: bool
    returns: str
    expansion: Graph | None = None
    dropped: tuple[bool | int, ...] = ()
    precision: str | None = None
    default_dtype: torch.dtype = torch.float32
    _plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self._plain = self.returns == "tensor" and self.outs[0].contiguous

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.specs))})"

    @property
    def plain(self) -> bool:
        """One contiguous result: the common case, which kernels treat in place."""
        return self._plain


_interned: Interned[Any, Signature] = Interned("signatures", most=65_536)
_numbers = count()


def intern(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    specs: tuple[TensorSpec, ...],
    outs: tuple[TensorSpec, ...],
    numbers: tuple[type, ...] = (),
    *,
    random: bool = False,
    returns: str = "tensor",
    dropped: tuple[bool | int, ...] = (),
    precision: str | None = None,
    default_dtype: torch.dtype | None = None,
    expand: Callable[[Signature], Graph] | None = None,
) -> Signature:
    """The one signature of this pattern. `expand` is asked once, for a pattern that is new.

    The other arguments are a `Signature`'s, `dropped` among them; all must be hashable. `default_dtype` is
    the one in force where it is None.

    >>> spec = contiguous_spec((3,), torch.float32)
    >>> signature = intern(aten.sin.default, (Slot(0),), {}, (spec,), (spec,))
    >>> signature is intern(aten.sin.default, (Slot(0),), {}, (spec,), (spec,))
    True
    """
    if not isinstance(op, torch._ops.OpOverload):
        default_dtype = torch.float32
    elif default_dtype is None:
        default_dtype = torch.get_default_dtype()
    key = (
        *(op, hashable(args), hashable(kwargs), specs, outs),
        *(random, returns, dropped, precision, default_dtype),
    )
    signature = _interned.get(key)
    if signature is not None:
        return signature
    if (signature := _interned.still_held(key)) is not None:
        return signature
    expansion = None
    if expand is not None:  # may intern others
        expansion = expand(Signature(-1, op, args, kwargs, specs, outs, numbers, random, returns))
    made = Signature(
        next(_numbers),
        op,
        args,
        kwargs,
        specs,
        outs,
        numbers,
        random,
        returns,
        expansion,
        dropped,
        precision,
        default_dtype,
    )
    return _interned.one(key, made)  # another thread may have been faster


def filled(
    template: Any, tensor: Callable[[Slot], Any], number: Callable[[NumberSlot], Any]
) -> Any:
    """A template with its slots filled by what these two give for them; tuples in it become lists."""
    if isinstance(template, Slot):
        return tensor(template)
    if isinstance(template, NumberSlot):
        return number(template)
    if isinstance(template, (list, tuple)):
        return [filled(part, tensor, number) for part in template]
    if isinstance(template, dict):
        return {name: filled(part, tensor, number) for name, part in template.items()}
    return template


def hashable(x: Any) -> Any:
    """`x` with lists as tuples, and numbers told apart by type and bits: `1`, `1.0` and `True` are three."""
    if isinstance(x, (list, tuple)):
        return tuple(hashable(i) for i in x)
    if isinstance(x, dict):
        return tuple((k, hashable(v)) for k, v in x.items())
    if isinstance(x, (bool, int)):
        return (x.__class__, x)
    if isinstance(x, float):
        return (float, x.hex())
    if isinstance(x, complex):
        return (complex, x.real.hex(), x.imag.hex())
    return x
