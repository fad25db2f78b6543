"""Keys of random numbers that control flow and its backward share.

before  y = cond(p, true, false, (x,))             after  k = rand(4)
        dx = cond(p, true_bw, false_bw, (x, dy))          y = cond(p, true, false, (x,), key=k)
                                                          dx = cond(p, true_bw, false_bw, (x, dy), key=k)

Backward of `cond` and `map` draws again what forward drew. With one key, and a number of its own for each
draw in an iteration, it draws the same. Where it cannot be told which draw is which, there is an error.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch._functorch.partitioners import must_recompute
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from torch_pjrt.errors import LoweringError
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.marks import Path, bodies_of, is_control, mark_of

# Of an operator in a body, in its `meta`: which draw of the iteration is its.
POSITION = "torch_pjrt_position"
KEY_SIZE = 4

_REPEATABLE = frozenset(("cond", "map_impl", "scan"))


@dataclass(frozen=True, slots=True)
class _Draw:
    """A random operator in a body; `depth` is how much control flow it is in."""

    node: Node
    body: GraphModule
    depth: int

    @property
    def path(self) -> Path | None:
        mark = mark_of(self.node)
        return mark if mark is not None and len(mark) == self.depth + 1 else None

    @property
    def kind(self) -> Any:
        shapes = [getattr(x, "shape", None) for x in tree_leaves(self.node.meta.get("val"))]
        return self.node.target, str(shapes)


def share_keys(module: GraphModule, *, computes_again: bool = False) -> None:
    """Give control flow that draws, and its backward, one key; in place.

    `computes_again` says that a partitioner may have backward compute what forward did: then each has a key.

    Raises `LoweringError` where backward draws, and cannot be told to draw what forward drew.
    """
    control = [n for n in module.graph.nodes if n.op == "call_function" and is_control(n)]
    drawing = {n: draws for n in control if (draws := list(_draws_in(module, n, 1)))}
    groups: dict[int, list[Node]] = defaultdict(list)
    backward = _after_tangents(module) if drawing else set()
    for node, draws in drawing.items():
        positions = {draw.path[0] for draw in draws if draw.path is not None}
        if len(positions) == 1:
            groups[positions.pop()].append(node)
        elif node in backward:
            _refuse(node, "backward computes draws that no mark tells from others")
        elif computes_again or must_recompute(node):
            _give(module, [node])
    for nodes in groups.values():
        first, *others = nodes
        if first in backward:
            _refuse(first, "forward draws nothing where backward does")
        for other in others:
            _verify(module, first, other, drawing)
        if others:
            for node in nodes:
                _position(module, node, 1)
        if others or computes_again or must_recompute(first):
            _give(module, nodes)


def draws(node: Node) -> bool:
    """Whether an operator is random; attention without dropout only may be."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    schema = getattr(node.target, "_schema", None)
    named = [a.name for a in schema.arguments] if schema is not None else []
    given = {**dict(zip(named, node.args, strict=False)), **node.kwargs}
    return "dropout_p" not in named or bool(given.get("dropout_p", 0.0) != 0.0)


def has_draws(body: GraphModule) -> bool:
    """Whether a body draws, or one within it."""
    calls = [n for n in body.graph.nodes if n.op == "call_function"]
    return any(draws(n) or any(map(has_draws, bodies_of(body, n))) for n in calls)


def _draws_in(module: GraphModule, node: Node, depth: int) -> Iterator[_Draw]:
    for body in bodies_of(module, node):
        for inner in body.graph.nodes:
            if inner.op != "call_function":
                continue
            if is_control(inner):
                yield from _draws_in(body, inner, depth + 1)
            elif draws(inner):
                yield _Draw(inner, body, depth)


def _after_tangents(module: GraphModule) -> set[Node]:
    """What is made of gradients of results."""
    after: set[Node] = set()
    for node in module.graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if is_tangent or not after.isdisjoint(node.all_input_nodes):
            after.add(node)
    return after


def _verify(module: GraphModule, first: Node, other: Node, drawing: dict[Node, Any]) -> None:
    """Refuse what would not draw in `other` what `first` drew."""
    if first.target is not other.target or str(first.target) not in _REPEATABLE:
        _refuse(
            other, f"it is the gradient of `{first.target}`, which runs its iterations otherwise"
        )
    known: dict[Path, list[Any]] = defaultdict(list)
    for draw in drawing[first]:
        if draw.path is not None:
            known[draw.path].append(draw.kind)
    again = Counter((draw.path, id(draw.body)) for draw in drawing[other])
    for draw in drawing[other]:
        if draw.path is None or known[draw.path] != [draw.kind]:
            _refuse(other, f"no draw of forward is known to be its `{draw.node.target}`")
        if again[draw.path, id(draw.body)] > 1:
            _refuse(other, f"several `{draw.node.target}` come from one call")
    for name in _loops_in(module, other):
        _refuse(other, f"the iterations of `{name}` in it may be forward's or backward's")


def _loops_in(module: GraphModule, node: Node) -> Iterator[str]:
    """Control flow in bodies of `node` that draws, and whose iterations have an order."""
    for body in bodies_of(module, node):
        for inner in body.graph.nodes:
            if inner.op == "call_function" and is_control(inner):
                if str(inner.target) not in ("cond", "map_impl"):
                    if next(_draws_in(body, inner, 1), None):
                        yield str(inner.target)
                else:
                    yield from _loops_in(body, inner)


def _position(module: GraphModule, node: Node, depth: int) -> None:
    """Number the draws of each body: even numbers by their marks, odd ones for those that have none.

    Several draws of one call have its mark, and none of them is told from the others: backward has none.
    """
    unmarked = 1
    for body in bodies_of(module, node):
        calls = [n for n in body.graph.nodes if n.op == "call_function"]
        own = Counter(mark_of(n) for n in calls if draws(n))
        for inner in calls:
            if is_control(inner):
                found = list(_draws_in(body, inner, depth + 1))
                _position(body, inner, depth + 1)
            else:
                found = [_Draw(inner, body, depth)] if draws(inner) else []
            paths = [draw.path for draw in found if draw.path and own[draw.path] < 2]
            if paths:
                inner.meta[POSITION] = 2 * paths[0][depth]
            elif found:
                inner.meta[POSITION] = unmarked
                unmarked += 2


def _give(module: GraphModule, nodes: list[Node]) -> None:
    """One key for these: what forward does, and what backward does after it."""
    first = nodes[0]
    kwargs = {"dtype": torch.float32, "device": torch.device("pjrt")}
    with module.graph.inserting_before(first):
        key = module.graph.call_function(aten.rand.default, ([KEY_SIZE],), kwargs)
    mode = detect_fake_mode([n.meta.get("val") for n in module.graph.nodes])
    assert mode is not None
    with mode:
        key.meta["val"] = torch.empty(KEY_SIZE, **kwargs)
    key.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for node in nodes:
        node.kwargs = {**node.kwargs, "key": key}
        if node is not first and str(node.target) == "scan":
            node.kwargs = {**node.kwargs, "backwards": True}
    module.recompile()


def _refuse(node: Node, saw: str) -> NoReturn:
    raise LoweringError(
        f"Backward (`{node.target}`) of control flow that draws random numbers would draw others.",
        saw=saw,
        hint="draw the numbers before the control flow and pass them to it as operands",
    )
