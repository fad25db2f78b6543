"""What differs between two observed calls of a step: they must be alike for a third to be replayed."""

from __future__ import annotations

from collections.abc import Iterator

from torch_pjrt.graph.graph import Graph
from torch_pjrt.replays.computed_numbers import agreed_formulas
from torch_pjrt.replays.group_numbers import Formulas
from torch_pjrt.replays.observation import Constant, Launch, Observed, Read, Result, Source


def differences(first: Observed, second: Observed, *, may_take_less: bool = False) -> list[str]:
    """In words; none if a replay of the second would do what the step did both times.

    Where somebody holds a tensor outside, another program is launched, which does not take its memory. That
    is not the one to replay, unless the second `may_take_less`.
    """
    if found := list(_of_reads(first.reads, second.reads)):
        return found
    if len(first.launches) != len(second.launches):
        return [f"it launched {len(first.launches)} programs, then {len(second.launches)}"]
    pairs = list(zip(first.launches, second.launches, strict=True))
    computed = agreed_formulas(first, second)
    if found := [d for pair, known in zip(pairs, computed, strict=True) for d in _of(*pair, known)]:
        return found
    if not may_take_less and any(set(a.program.donated) - set(b.program.donated) for a, b in pairs):
        return ["it took the memory of fewer tensors than the time before: somebody holds them"]
    if _sets(first.writes) != _sets(second.writes):
        return ["it wrote its results to other tensors than the time before"]
    if first.checks.keys() != second.checks.keys():
        return ["it checked other indices than the time before"]
    if first.gradients != second.gradients:
        return ["it made other gradients than the time before"]
    left = sum(r() is not None for refs in first.fresh.values() for r in refs)
    if left and second.fresh and not _alike_in_place(first, second):
        return [
            f"it keeps {left} tensors that it made (in a list, for example): a replay would make them "
            "only once; return them instead"
        ]
    return []


def _sets(writes: dict[Result, list[Source]]) -> dict[Result, set[Source]]:
    return {result: set(targets) for result, targets in writes.items()}


def _alike_in_place(first: Observed, second: Observed) -> bool:
    """Whether what the first call left behind is what the second one wrote to."""
    left = {id(b) for refs in first.fresh.values() for r in refs if (b := r()) is not None}
    written = {
        id(b)
        for targets in second.writes.values()
        for t in targets
        if hasattr(t, "buffer") and (b := t.buffer()) is not None  # type: ignore[union-attr]
    }
    return left <= written


def _of(first: Launch, second: Launch, computed: Formulas) -> Iterator[str]:
    if first.code != second.code:
        yield _of_code(first, second)
        return
    for kind, a, b in (("int", first.ints, second.ints), ("float", first.floats, second.floats)):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if x != y and not (x != x and y != y) and not (kind == "float" and i in computed):
                yield (
                    f"a Python number changes from call to call: {x!r}, then {y!r}, an argument of "
                    f"`{_taker_of(second.program.recorded, kind, i)}`. Make it a tensor"
                )
                return
    for i, (x, y) in enumerate(zip(first.sources, second.sources, strict=True)):
        if isinstance(x, Constant) and isinstance(y, Constant) and x != y:
            yield (
                f"it makes a tensor from the host whose content changes from call to call ({x.spec}): "
                "pass it as an argument, on pjrt"
            )
            return
        if x != y:
            yield f"it read another tensor than the time before ({_look(second, i)})"
            return


def _of_reads(first: list[Read], second: list[Read]) -> Iterator[str]:
    for x, y in zip(first, second, strict=False):
        if x.content != y.content:
            yield (
                "it reads values of tensors that change from call to call (.item(), print, control flow): "
                f"{x.content}, then {y.content}; torch_pjrt.report() names the lines"
            )
            return
    if [(x.n_launches, x.source) for x in first] != [(y.n_launches, y.source) for y in second]:
        yield f"it read {len(first)} values of tensors, then {len(second)}, or those of others"


def _of_code(first: Launch, second: Launch) -> str:
    operators, others = (
        [str(node.op) for node in launch.program.recorded.nodes] for launch in (first, second)
    )
    for i, (x, y) in enumerate(zip(operators, others, strict=False)):
        if x != y:
            return f"operator {i} was `{x}`, then `{y}`"
    if len(operators) != len(others):
        return f"it recorded {len(operators)} operators, then {len(others)}"
    return "its operators were called with other shapes or arguments, or on other tensors"


def _taker_of(graph: Graph, kind: str, index: int) -> str:
    for node in graph.nodes:
        for number in node.numbers:
            if (number.kind.__name__, number.index) == (kind, index):
                return str(node.op)
    return "an operator that nothing reads"


def _look(launch: Launch, position: int) -> str:
    return str(launch.program.recorded.inputs[position])
