"""Nodes that a pass makes: a rewrite calls an operator as PyTorch does, and gets the names of its results.

    @dataclass(frozen=True, slots=True)
    class SplitAddcmul:
        name: str = "split-addcmul"
        stage: Stage = Stage.REWRITE

        def __call__(self, graph: Graph) -> Graph:
            return rewritten(graph, self.rewrite)

        def rewrite(self, node: Node, build: Builder) -> Ref | None:
            if node.op is not aten.addcmul.default:
                return None  # it stays
            x, a, b = build.args
            return build(aten.add.Tensor, x, build(aten.mul.Tensor, a, b), alpha=build.kwargs["value"])

Shapes and dtypes come from PyTorch's meta functions; the rest of the graph is wired by `rewritten`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.graph import Draw, Graph, Node, Number
from torch_pjrt.graph.signature import NumberSlot, Slot, filled, intern
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph as an argument of a call: its name, and what it looks like.

    >>> from torch_pjrt.testing.graphs import parse
    >>> graph = parse('''
    ...     i0: float32[3]
    ...     v0: float32[3] = aten.sin.default(i0)
    ...     return v0''')
    >>> def printing(node, build):  # for `rewritten`
    ...     print(build.args)
    >>> after = rewritten(graph, printing)
    (Ref(name=-1, spec=float32[3]),)
    """

    name: int
    spec: TensorSpec


class Builder:
    """Makes nodes in the place of `node`.

    args, kwargs   of the node, as the operator was called: `Ref` for a tensor, `Number` for a Python number
                   of the call, lists for lists, everything else as it is.
    inputs         the node's tensors, in order.
    draw           which random numbers the node gets; None if it draws none.
    fresh          the number that the next value gets.

        >>> def twice(node, build):  # for `rewritten`
        ...     return build(aten.add.Tensor, *build.args, *build.args)
    """

    def __init__(self, node: Node, inputs: Sequence[Ref], fresh: int) -> None:
        self.node = node
        self.inputs = tuple(inputs)
        self.made: list[Node] = []
        self.fresh = fresh
        s = node.signature
        self.args: tuple[Any, ...] = tuple(filled(s.args, self._input, self._number))
        self.kwargs: dict[str, Any] = filled(s.kwargs, self._input, self._number)

    @property
    def draw(self) -> Draw | None:
        return self.node.draw

    def __call__(
        self,
        op: Any,
        *args: Any,
        outs: Sequence[TensorSpec] | None = None,
        draw: Draw | None = None,
        **kwargs: Any,
    ) -> Any:
        """Add a node; a `Ref`, or a list of them where the operator gives a tuple or a list.

        op       a functional overload (`aten.mul.Tensor`) with a rule; never `mul_` or `mul.out`.
        args     as the operator takes them: `Ref`s, `Number`s of `build.args`, constants.
        outs     what the results look like; PyTorch's meta function says so where it is None. One entry for
                 each tensor; what is dense in no order of dims is taken as contiguous.
        draw     for an operator that draws random numbers: `build.draw`, which no other node may have then.

        What PyTorch raises for such a call comes through: a wrong shape is an error here, in the pass.
        """
        slots = _Slots()
        args, kwargs = _normal(op, args, kwargs)
        template = tuple([slots.of(a) for a in args])
        named = {name: slots.of(a) for name, a in kwargs.items()}
        returns = _returns(op)
        if outs is None:
            outs = _specs(op(*_on_meta(args), **_on_meta(kwargs)))
        signature = intern(
            op,
            template,
            named,
            tuple([ref.spec for ref in slots.refs]),
            tuple(outs),
            tuple([n.kind for n in slots.numbers]),
            random=draw is not None,
            returns=returns,
            default_dtype=self.node.signature.default_dtype,
        )
        names = tuple(range(self.fresh, self.fresh + len(outs)))
        self.fresh += len(names)
        inputs = tuple([ref.name for ref in slots.refs])
        self.made.append(Node(signature, inputs, names, tuple(slots.numbers), draw, self.node.line))
        refs = [Ref(name, spec) for name, spec in zip(names, outs, strict=True)]
        return refs[0] if returns == "tensor" else refs

    def _input(self, slot: Slot) -> Ref:
        return self.inputs[slot.index]

    def _number(self, slot: NumberSlot) -> Number:
        return self.node.numbers[slot.index]


Rewrite = Callable[[Node, Builder], "Ref | Sequence[Ref] | None"]


def rewritten(graph: Graph, rewrite: Rewrite) -> Graph:
    """The graph in which each node is what `rewrite(node, build)` returns in its place.

    `rewrite` returns None for a node that stays, else one `Ref` for each of the node's results: of nodes that
    `build` has made, or of what was there before (`build.inputs`). Shapes and dtypes must be the old ones.
    Nodes that nobody reads any more are left to the pass that drops them.

    Raises `InvalidGraph` where the number of results differs.

        >>> from torch_pjrt.testing.graphs import parse
        >>> before = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.square.default(i0)
        ...     return v0''')
        >>> def product(node, build):
        ...     if node.op is aten.square.default:
        ...         return build(aten.mul.Tensor, *build.args, *build.args)
        >>> [node.op.name() for node in rewritten(before, product).nodes]
        ['aten::mul.Tensor']
    """
    refs = {-i - 1: Ref(-i - 1, spec) for i, spec in enumerate(graph.inputs)}
    fresh = 1 + max((v for n in graph.nodes for v in n.outputs), default=-1)
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = [refs[v] for v in node.inputs]
        build = Builder(node, inputs, fresh)
        found = rewrite(node, build)
        if found is None:
            names = tuple([ref.name for ref in inputs])
            nodes.append(node if names == node.inputs else replace(node, inputs=names))
            refs.update(
                (v, Ref(v, spec)) for v, spec in zip(node.outputs, node.signature.outs, strict=True)
            )
            continue
        found = [found] if isinstance(found, Ref) else list(found)
        if len(found) != len(node.outputs):
            raise InvalidGraph(
                f"A rewrite of `{node.op}` returned {len(found)} values.",
                expected=f"{len(node.outputs)}, one for each result of the node",
            )
        fresh = build.fresh
        nodes += build.made
        refs.update(zip(node.outputs, found, strict=True))
    outputs = tuple([refs[v].name for v in graph.outputs])
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


class _Slots:
    """Turns arguments into what a signature holds, and keeps what it does not."""

    def __init__(self) -> None:
        self.refs: list[Ref] = []
        self.numbers: list[Number] = []

    def of(self, x: Any) -> Any:
        if isinstance(x, Ref):
            self.refs.append(x)
            return Slot(len(self.refs) - 1)
        if isinstance(x, Number):
            self.numbers.append(x)
            return NumberSlot(len(self.numbers) - 1, x.kind)
        return [self.of(part) for part in x] if isinstance(x, (list, tuple)) else x


# What no rule sees.
_DROPPED = frozenset(
    ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")
)


def _normal(
    op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Every argument of the overload as kernels record them: positional ones in order, defaults filled in."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return tuple(args), kwargs
    known = [a for a in schema.arguments if a.name not in _DROPPED]
    by_position = [a for a in schema.arguments if not a.kwarg_only]
    if len(args) > len(by_position) or not kwargs.keys() <= {a.name for a in schema.arguments}:
        raise TypeError(f"`{op}` does not take these arguments: {schema}")
    given = {**dict(zip([a.name for a in by_position], args, strict=False)), **kwargs}
    for a in known:
        if a.name not in given and not a.has_default_value():
            raise TypeError(f"`{op}` needs the argument `{a.name}`: {schema}")
    values = {a.name: given.get(a.name, a.default_value) for a in known}
    positional = tuple([values[a.name] for a in known if not a.kwarg_only])
    return positional, {a.name: values[a.name] for a in known if a.kwarg_only}


def _returns(op: Any) -> str:
    schema = getattr(op, "_schema", None)
    if schema is None:
        return "list"
    kinds = [str(r.type) for r in schema.returns]
    if kinds == ["List[Tensor]"]:
        return "list"
    return "tensor" if kinds == ["Tensor"] else "tuple"


def _on_meta(x: Any) -> Any:
    if isinstance(x, Ref):
        return x.spec.meta()
    if isinstance(x, Number):
        return x.kind(1) if x.value is None else x.value
    if isinstance(x, dict):
        return {name: _on_meta(part) for name, part in x.items()}
    return [_on_meta(part) for part in x] if isinstance(x, (list, tuple)) else x


def _specs(results: Any) -> list[TensorSpec]:
    specs = []
    for x in results if isinstance(results, (list, tuple)) else (results,):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"an operator gave {type(x).__name__}, not a tensor: say `outs`")
        spec = spec_of(tuple(x.shape), x.dtype, x.stride())
        specs.append(spec if spec.dense else contiguous_spec(spec.shape, spec.dtype))
    return specs
