"""Where in the user's program the nodes of an FX graph come from: Dynamo keeps it as text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_pjrt.extend import Line

_LOCATION = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class LinedCode(list[Any]):
    """A tape's code that knows the line of each node, as `observe.lines.NotedCode` does."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines = Lines()

    @contextmanager
    def at(self, line: Line | None) -> Iterator[None]:
        """What is appended within the block comes from this line."""
        self.lines.begin(len(self), line)
        yield


class Lines:
    """The line of a node by the position where it begins: that of the last `begin` before it."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lines: list[Line | None] = []

    def begin(self, position: int, line: Line | None) -> None:
        self._starts.append(position)
        self._lines.append(line)

    def get(self, position: int) -> Line | None:
        """The line of the node at `position`."""
        found = bisect_right(self._starts, position) - 1
        return self._lines[found] if found >= 0 else None


def line_of(node: torch.fx.Node) -> Line | None:
    """The innermost line of the user's program that the node comes from."""
    positions = _LOCATION.findall(node.meta.get("stack_trace") or "")
    if not positions:
        return None
    file, number, function = positions[-1]
    backward = node.meta.get("partitioner_tag") == "is_backward"
    return Line(file, int(number), function, _module_of(node), backward)


def name_of(module: torch.fx.GraphModule, kind: str) -> str:
    """What a compiled graph is called in reports: `compiled forward, model.py:12`."""
    for node in module.graph.nodes:
        line = line_of(node)
        if line is not None:
            return f"compiled {kind}, {line}"
    return f"compiled {kind}"


def short_stack(node: torch.fx.Node) -> dict[str, tuple[str, str]]:
    """Of the modules around a node what `line_of` needs, as text: the outermost class, and the path."""
    stack = list((node.meta.get("nn_module_stack") or {}).items())
    return {
        str(key): (str(path), kind if isinstance(kind, str) else kind.__name__)
        for key, (path, kind) in stack[:1] + stack[1:][-1:]
    }


def _module_of(node: torch.fx.Node) -> str:
    """The path of the module, from the class of the outermost on: `GPT/blocks.3/attn`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    paths = [(str(path), kind) for path, kind in stack.values()]
    outermost = paths[0][1]
    name = outermost.rpartition(".")[2] if isinstance(outermost, str) else outermost.__name__
    inner = re.sub(r"^(L\['\w+'\]|self)\.?", "", paths[-1][0])
    inner = re.sub(r"_modules\['([^']+)'\]", r"\1", inner)
    return f"{name}/{inner.replace('.', '/')}" if inner else name
