"""A graph: what a tape says, as data that passes read and rewrite.

Values are named by integers, as on the tape: negative for inputs, others for results of nodes. Nodes
are in an order in which every value is made before it is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch_pjrt.errors import InvalidGraph
from torch_pjrt.graph.line import Line
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import Signature
from torch_pjrt.graph.tape import Tape, Value
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec


@dataclass(frozen=True, slots=True)
class Number:
    """A Python number of a call: the `index`-th int or float of the tape.

    `value` is its value where it is a constant of the program, None where it is an input.

        >>> from torch_pjrt.extend import graph_of, recorded
        >>> with recorded(lambda x: x + 5, [torch.empty(3)]) as step:
        ...     [node] = graph_of(step.tape, step.outputs).nodes
        >>> node.numbers[0].kind, node.numbers[0].value
        (<class 'int'>, 5)
    """

    kind: type
    index: int
    value: int | float | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """Which random numbers a node gets: the `index`-th draw since the `seeding`-th seed of the tape.

    >>> from torch_pjrt.extend import graph_of, recorded
    >>> with recorded(torch.bernoulli, [torch.rand(3)]) as step:
    ...     graph_of(step.tape, step.outputs).nodes[0].draw
    Draw(seeding=0, index=0)
    """

    seeding: int
    index: int


@dataclass(frozen=True, slots=True)
class Node:
    """One operator on named values.

    inputs   by the signature's slots.
    outputs  the names that its results get.
    line     where the user called it, if that was noted. It is no part of what the node computes.

        >>> from torch_pjrt.testing.graphs import parse
        >>> graph = parse('''
        ...     i0: float32[3]
        ...     v0: float32[3] = aten.sin.default(i0)
        ...     return v0''')
        >>> [node] = graph.nodes
        >>> node.op.name(), node.inputs, node.outputs
        ('aten::sin', (-1,), (0,))
    """

    signature: Signature
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[Number, ...] = ()
    draw: Draw | None = None
    line: Line | None = field(default=None, compare=False)

    @property
    def op(self) -> Any:
        return self.signature.op


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in order; `inputs[i]` is the spec of value `-i-1`; `outputs` are the values wanted.

    >>> from torch_pjrt.testing.graphs import parse
    >>> graph = parse('''
    ...     i0: float32[3]
    ...     v0: float32[3] = aten.sin.default(i0)
    ...     return v0''')
    >>> graph.nodes[0].inputs, graph.outputs
    ((-1,), (0,))
    """

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def verify(self, after: str) -> Graph:
        """This graph, or an `InvalidGraph` that names `after`, the pass that returned it."""
        known = {-i - 1 for i in range(len(self.inputs))}
        for node in self.nodes:
            for value in node.inputs:
                if value not in known:
                    raise InvalidGraph(
                        f"`{node.op}` reads the value {value} before anything makes it.",
                        saw=f"the graph that `{after}` returned",
                    )
            for value in node.outputs:
                if value in known:
                    raise InvalidGraph(
                        f"`{node.op}` makes the value {value}, which exists already.",
                        saw=f"the graph that `{after}` returned",
                    )
                known.add(value)
            if (len(node.inputs), len(node.outputs)) != (
                len(node.signature.specs),
                len(node.signature.outs),
            ):
                raise InvalidGraph(
                    f"`{node.op}` has a wrong number of inputs or outputs.",
                    saw=f"{len(node.inputs)} inputs and {len(node.outputs)} outputs "
                    f"in the graph that `{after}` returned",
                    expected=f"{len(node.signature.specs)} and {len(node.signature.outs)}",
                )
            if isinstance(node.op, LoopOp):
                node.op.verify(after)
        if missing := [value for value in self.outputs if value not in known]:
            raise InvalidGraph(
                f"The outputs {missing} are not made by any node.",
                saw=f"the graph that `{after}` returned",
            )
        return self

    def specs(self) -> dict[int, TensorSpec]:
        """What each value looks like."""
        specs = {-i - 1: spec for i, spec in enumerate(self.inputs)}
        for node in self.nodes:
            specs.update(zip(node.outputs, node.signature.outs, strict=True))
        return specs

    def renamed(self, names: dict[int, int]) -> Graph:
        """This graph with every value `v` in `names` read as `names[v]`."""
        return replace(
            self,
            nodes=tuple(
                replace(n, inputs=tuple(names.get(v, v) for v in n.inputs)) for n in self.nodes
            ),
            outputs=tuple(names.get(v, v) for v in self.outputs),
        )


def graph_of(tape: Tape, outputs: Sequence[int]) -> Graph:
    """The graph that a tape recorded, with these values as outputs and every number a constant.

    >>> with onto(Tape(nested=True)) as tape:
    ...     y = torch.ones(2, device="pjrt").sin()
    >>> graph_of(tape, [value_of(y).number]).nodes[-1].op.name()
    'aten::sin'
    """
    return Graph(
        inputs=specs_of_arrays(tape.inputs),
        nodes=tuple(_nodes(tape)),
        outputs=tuple(outputs),
    )


def specs_of_arrays(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    """What the arrays of values look like, which have no strides of their own.

    To a program an array that came from the host and one that an operator made for a tensor in another
    memory format are the same.
    """
    return tuple(
        [
            spec if (spec := value.spec).plain else contiguous_spec(spec.shape, spec.dtype)
            for value in values
        ]
    )


def _nodes(tape: Tape) -> Iterator[Node]:
    code = tape.code
    lines: dict[int, Line | None] = getattr(code, "lines", {})
    position = n_values = n_ints = n_floats = 0
    while position < len(code):
        signature = code[position]
        line = lines.get(position)
        position += 1
        end = position + len(signature.specs)
        inputs = tuple(code[position:end])
        draw = None
        if signature.random:
            draw = Draw(code[end], code[end + 1])
            end += 2
        position = end
        numbers: list[Number] = []
        for kind in signature.numbers:
            if kind is int:
                numbers.append(Number(int, n_ints, tape.ints[n_ints]))
                n_ints += 1
            else:
                numbers.append(Number(float, n_floats, tape.floats[n_floats]))
                n_floats += 1
        outputs = tuple(range(n_values, n_values + len(signature.outs)))
        n_values += len(signature.outs)
        yield Node(signature, inputs, outputs, tuple(numbers), draw, line)


def with_inputs(graph: Graph, changing: frozenset[tuple[type, int]]) -> Graph:
    """The graph in which the numbers `(kind, index)` of `changing` are inputs and no longer constants."""
    if not changing:
        return graph

    def replaced(number: Number) -> Number:
        if (number.kind, number.index) in changing:
            return replace(number, value=None)
        return number

    return replace(
        graph,
        nodes=tuple(
            replace(n, numbers=tuple(map(replaced, n.numbers))) if n.numbers else n
            for n in graph.nodes
        ),
    )
