"""A graph in parts: what can be recorded before a node, the node by itself, and what comes after.

The node is an island: its operator has no rule for the device, or needs the values of tensors. It runs as it
would without a compiler, by its kernel or on the CPU, where it is counted with the other fallbacks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import counters
from torch_pjrt_dynamo.marks import is_control
from torch_pjrt_dynamo.operators import CannotRecord, run_island

Run = Callable[[list[Any]], list[Any]]
MakeRun = Callable[[GraphModule, str], Run]


@dataclass(slots=True)
class Step:
    """A function from some of the graph's values to others, by name; `last` are not read again."""

    run: Run
    takes: list[str]
    gives: list[str]
    last: list[str] = field(default_factory=list)


def in_parts(module: GraphModule, error: CannotRecord, name: str, make: MakeRun) -> Run:
    """The graph cut at the node of `error`; `make` compiles what is before and after it.

    Raises `LoweringError` for control flow that must draw what its backward draws: as an island it would not.
    """
    if "key" in error.node.kwargs and is_control(error.node):
        raise LoweringError(
            f"`{error.node.target}` draws random numbers that backward needs too, "
            "and cannot be part of a program.",
            saw=error.reason,
            hint="draw the numbers before the control flow and pass them to it as operands",
        ) from error
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
    output = next(n for n in module.graph.nodes if n.op == "output")
    counters.islands[f"{error.node.target}: {error.reason}"] += 1
    cut = nodes.index(error.node)
    island = [error.node, *(n for n in error.node.users if n.target is operator.getitem)]
    after = [n for n in nodes[cut + 1 :] if n not in island]
    groups = [group for group in (nodes[:cut], island, after) if group]
    steps: list[Step] = []
    for number, group in enumerate(groups):
        takes = _in_order(u for n in group for u in n.all_input_nodes if u not in set(group))
        later = [n for others in groups[number + 1 :] for n in others] + [output]
        read_later = {u for n in later for u in n.all_input_nodes}
        gives = [n for n in group if n in read_later]
        part = _module(module, group, takes, gives)
        run = _Island(part) if group is island else make(part, name)
        steps.append(Step(run, [n.name for n in takes], [n.name for n in gives]))
    read = {n.name for n in output.all_input_nodes}
    for step in reversed(steps):
        step.last = [name for name in step.takes if name not in read]
        read.update(step.takes)
    positions = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    return _Parts(positions, steps, output)


class _Parts:
    """Runs the steps in order."""

    def __init__(self, positions: list[str], steps: list[Step], output: Node) -> None:
        self.positions = positions
        self.steps = steps
        self.output = output

    def __call__(self, args: list[Any]) -> list[Any]:
        values = dict(zip(self.positions, args, strict=True))
        args.clear()
        for step in self.steps:
            inputs = [values[name] for name in step.takes]
            for name in step.last:
                del values[name]
            values.update(zip(step.gives, step.run(inputs), strict=True))
        results = map_arg(self.output.args[0], lambda n: values[n.name])
        return list(results)  # pyright: ignore[reportArgumentType]


class _Island:
    """One node, run by itself, and the elements of its results."""

    def __init__(self, module: GraphModule) -> None:
        self.positions = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output")]
        self.output = next(n for n in module.graph.nodes if n.op == "output")

    def __call__(self, args: list[Any]) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self.positions, args, strict=True))
        args.clear()
        for node in self.nodes:
            given = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = run_island(node.target, *given)
        return [values[n] for n in self.output.all_input_nodes]


def _in_order(nodes: Iterable[Node]) -> list[Node]:
    return list(dict.fromkeys(nodes))


def _module(
    whole: GraphModule, nodes: Sequence[Node], takes: Sequence[Node], gives: Sequence[Node]
) -> GraphModule:
    graph = Graph()
    names: dict[Node, Node] = {}
    for node in takes:
        names[node] = graph.placeholder(node.name)
        names[node].meta = node.meta
    for node in nodes:
        names[node] = graph.node_copy(node, names.__getitem__)
    graph.output(tuple(names[node] for node in gives))
    return GraphModule(whole, graph)
