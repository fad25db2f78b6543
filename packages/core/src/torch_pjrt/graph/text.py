"""A graph as text that a person reads: one line a node.

i0: float32[2, 3]
v0: float32[3, 2] = pjrt.read(i0, ...)
return v0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_pjrt.graph.graph import Graph, Node, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import NumberSlot, Slot


def text(graph: Graph) -> str:
    """The whole graph; inputs are `i0, i1, ...`, other values `v0, v1, ...`.

    A loop is followed by its body, indented: names in it are its own.
    A node whose line in the user's program is known ends with it: `# model.py:12 GPT/attn`.
    """
    return "\n".join(_lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield from (f"i{i}: {spec}" for i, spec in enumerate(graph.inputs))
    for node in graph.nodes:
        yield _line(node)
        if isinstance(node.op, LoopOp):
            yield from (f"    {line}" for line in _lines(node.op.body))
    yield f"return {', '.join(map(name, graph.outputs))}"


def name(value: int) -> str:
    """`i0` for the value -1, `v7` for the value 7."""
    return f"i{-value - 1}" if value < 0 else f"v{value}"


def _line(node: Node) -> str:
    made = ", ".join(
        f"{name(v)}: {spec}" for v, spec in zip(node.outputs, node.signature.outs, strict=True)
    )
    args = [_argument(node, a) for a in node.signature.args]
    args += [f"{k}={_argument(node, v)}" for k, v in node.signature.kwargs.items()]
    notes = [node.op.described()] if isinstance(node.op, LoopOp) else []
    notes += [f"draw {node.draw.seeding}.{node.draw.index}"] if node.draw else []
    if node.line is not None:
        notes.append(node.line.described())
    comment = f"  # {', '.join(notes)}" if notes else ""
    return f"{made} = {node.op}({', '.join(args)}){comment}"


def _argument(node: Node, argument: Any) -> str:
    if isinstance(argument, Slot):
        return name(node.inputs[argument.index])
    if isinstance(argument, NumberSlot):
        return _number(node.numbers[argument.index])
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_argument(node, a) for a in argument)}]"
    return str(argument)


def _number(number: Number) -> str:
    return f"{number.kind.__name__}#{number.index}" if number.value is None else str(number.value)
