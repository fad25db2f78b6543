"""Graphs from text, so that a test of a pass reads as before and after.

The text is what `torch_pjrt.graph.text.text` prints, and `text(parse(x)) == x`:

    i0: float32[3]
    v0: float32[3] = aten.mul.Scalar(i0, 0.5)
    v1: float32[3] = aten.bernoulli.default(v0)  # draw 0.1
    return v1

Shorter is allowed: a result without a spec looks like the node's first input. A name that PyTorch
has no operator of (`pjrt.read`, `a_test.op`) is an `InternalOp`. A literal with a point (`0.5`,
`nan`) is a Python number of the call, a constant of the program; `float#0` and `int#2` are numbers
that are inputs of the program; any other literal belongs to the signature.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from torch_pjrt.graph.graph import Draw, Graph, Node, Number
from torch_pjrt.graph.signature import InternalOp, NumberSlot, Signature, Slot, intern
from torch_pjrt.graph.tensor_spec import TensorSpec, contiguous_spec, spec_of

_NODE = re.compile(
    r"(?P<made>[^=]+) = (?P<op>[\w.]+)\((?P<args>.*)\)(?:  # draw (?P<draw>\d+\.\d+))?"
)
_SPEC = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d, ]*)\](?: strides \[(?P<strides>[\d, ]*)\])?")
_VALUE = re.compile(r"([iv])(\d+)")
_INPUT_NUMBER = re.compile(r"(int|float)#(\d+)")
_LITERALS: Mapping[str, Any] = {"None": None, "True": True, "False": False}
_UNKNOWN = contiguous_spec((), torch.float32)  # what nothing has made: wrong graphs are texts too


def parse(text: str, expansions: Mapping[str, str] | None = None) -> Graph:
    """The graph that the text describes; `ValueError` for a line that cannot be read.

    `expansions` gives the text of the graph that stands for an operator, by the operator's name.
    Signatures are interned in the process: an operator's expansion is the one it was first parsed
    with.
    """
    inputs: list[TensorSpec] = []
    nodes: list[Node] = []
    outputs: tuple[int, ...] = ()
    specs: dict[int, TensorSpec] = {}
    n_floats = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("return"):
            outputs = tuple(map(_value, _split(line.removeprefix("return"))))
        elif line.startswith("i"):
            inputs.append(_spec(line.partition(":")[2]))
            specs[-len(inputs)] = inputs[-1]
        elif match := _NODE.fullmatch(line):
            node = _node(match, specs, n_floats, expansions or {})
            n_floats += sum(n.kind is float and n.value is not None for n in node.numbers)
            specs.update(zip(node.outputs, node.signature.outs, strict=True))
            nodes.append(node)
        else:
            raise ValueError(f"not a line of a graph: {line!r}")
    return Graph(tuple(inputs), tuple(nodes), outputs)


class _Arguments:
    """Turns words into what a signature holds, and keeps what it does not."""

    def __init__(self, n_floats: int) -> None:
        self.values: list[int] = []
        self.numbers: list[Number] = []
        self._n_floats = n_floats

    def read(self, word: str) -> Any:
        if word.startswith("[") and word.endswith("]"):
            return [self.read(w) for w in _split(word[1:-1])]
        if _VALUE.fullmatch(word):
            self.values.append(_value(word))
            return Slot(len(self.values) - 1)
        if match := _INPUT_NUMBER.fullmatch(word):
            kind = int if match[1] == "int" else float
            return self._number(Number(kind, int(match[2])))
        if word in _LITERALS:
            return _LITERALS[word]
        if re.fullmatch(r"-?\d+", word):
            return int(word)
        if word.startswith("torch."):
            return getattr(torch, word.removeprefix("torch."))
        try:
            value = float(word)
        except ValueError:
            return word
        self._n_floats += 1
        return self._number(Number(float, self._n_floats - 1, value))

    def _number(self, number: Number) -> NumberSlot:
        self.numbers.append(number)
        return NumberSlot(len(self.numbers) - 1, number.kind)


def _node(
    match: re.Match[str],
    specs: Mapping[int, TensorSpec],
    n_floats: int,
    expansions: Mapping[str, str],
) -> Node:
    arguments = _Arguments(n_floats)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in _split(match["args"]):
        if keyword := re.fullmatch(r"([a-z_]\w*)=(.*)", word):
            kwargs[keyword[1]] = arguments.read(keyword[2])
        else:
            args.append(arguments.read(word))
    taken = tuple(specs.get(v, _UNKNOWN) for v in arguments.values)
    made = [word.partition(":") for word in _split(match["made"])]
    signature = intern(
        _operator(match["op"]),
        tuple(args),
        kwargs,
        taken,
        tuple(_spec(look) if look or not taken else taken[0] for _, _, look in made),
        tuple(n.kind for n in arguments.numbers),
        random=match["draw"] is not None,
        returns="tensor" if len(made) == 1 else "tuple",
        expand=_expander(expansions.get(match["op"]), expansions),
    )
    return Node(
        signature,
        tuple(arguments.values),
        tuple(_value(name) for name, _, _ in made),
        tuple(arguments.numbers),
        Draw(*map(int, match["draw"].split("."))) if match["draw"] else None,
    )


def _expander(
    text: str | None, expansions: Mapping[str, str]
) -> Callable[[Signature], Graph] | None:
    return None if text is None else lambda signature: parse(text, expansions)


def _operator(name: str) -> Any:
    namespace, _, rest = name.partition(".")
    if namespace not in ("aten", "prims"):
        return InternalOp(name)
    base, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")


def _spec(word: str) -> TensorSpec:
    match = _SPEC.fullmatch(word.strip())
    if match is None:
        raise ValueError(f"not the look of a tensor: {word!r}")
    dtype, shape = getattr(torch, match["dtype"]), tuple(map(int, _split(match["shape"])))
    if match["strides"] is None:
        return contiguous_spec(shape, dtype)
    return spec_of(shape, dtype, tuple(map(int, _split(match["strides"]))))


def _value(word: str) -> int:
    match = _VALUE.fullmatch(word.strip())
    if match is None:
        raise ValueError(f"not the name of a value: {word!r}")
    return -int(match[2]) - 1 if match[1] == "i" else int(match[2])


def _split(words: str) -> Iterator[str]:
    """The parts between the commas that are in no brackets."""
    depth, part = 0, ""
    for letter in words:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += letter
    if part.strip():
        yield part.strip()
