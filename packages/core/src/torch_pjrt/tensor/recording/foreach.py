"""Operators on lists (`_foreach_add_`): elements that share memory, and elements that look alike.

PyTorch does one element after the other; recorded as one node, all would read what was there before. So
where an element of an in-place operator writes what another one uses, they are recorded one by one.

A model has hundreds of parameters and few shapes: PyTorch's meta functions are asked once for each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_pjrt.tensor.storage.buffer import Buffer, is_pjrt, spec_and_offset
from torch_pjrt.tensor.storage.overlap import (
    Span,
    refuse_partial_overlap,
    same_view,
    span_of,
)


def depends_on_order(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether memory that an element of the first list writes to is used for another element.

    Or for the same element, but not as the same view: PyTorch refuses that. Mostly no two of the tensors
    share a buffer, which is seen at a glance.
    """
    targets = args[0]
    position_of = {_buffer(t): i for i, t in enumerate(targets)}
    others = [
        (i, t)
        for given in (*args[1:], *kwargs.values())
        if isinstance(given, (list, tuple)) and given and isinstance(given[0], torch.Tensor)
        for i, t in enumerate(given)
        if _buffer(t) in position_of and t is not targets[i]
    ]
    if len(position_of) == len(targets) and not others:
        return False
    return _Written(targets).is_used_by(others)


class _Written:
    """The stretches of memory that a list of tensors writes to, sorted by where they start."""

    def __init__(self, targets: list[torch.Tensor]) -> None:
        self.targets = targets
        self.spans: dict[Buffer | None, list[tuple[Span, int]]] = {}
        for i, t in enumerate(targets):
            if is_pjrt(t) and t.numel():
                self.spans.setdefault(_buffer(t), []).append((span_of(t), i))
        for spans in self.spans.values():
            spans.sort()

    def is_used_by(self, others: list[tuple[int, torch.Tensor]]) -> bool:
        """Whether two of them meet, or an element of another list meets one that is not its own."""
        for spans in self.spans.values():
            ends = [end for (_, end), _ in spans]
            starts = [start for (start, _), _ in spans]
            if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
                return True
        return any(self._is_met(i, t) for i, t in others if t.numel())

    def _is_met(self, position: int, t: torch.Tensor) -> bool:
        spans = self.spans.get(_buffer(t), [])
        start, end = span_of(t)
        # They do not meet one another, so that their ends are sorted as well.
        for (first, _), i in spans[bisect_right(spans, start, key=lambda s: s[0][1]) :]:
            if first >= end:
                return False
            if i != position or not same_view(t, self.targets[i]):
                return True
        return False


def _buffer(t: torch.Tensor) -> Buffer | None:
    return getattr(t.untyped_storage(), "buffer", None)


def one_by_one(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
) -> None:
    """`call` the operator on lists of one element each; overlaps are refused as without lists."""

    def element(given: Any, i: int) -> Any:
        return [given[i]] if isinstance(given, (list, tuple)) else given

    for i, target in enumerate(args[0]):
        used = [element(a, i) for a in (*args[1:], *kwargs.values())]
        refuse_partial_overlap((target,), [u[0] for u in used if isinstance(u, list)])
        call(op, tuple(element(a, i) for a in args), {k: element(v, i) for k, v in kwargs.items()})


def each_where_it_is(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on lists whose elements are on several devices: each is computed where it is."""

    def element(given: Any, i: int) -> Any:
        return [given[i]] if isinstance(given, (list, tuple)) else given

    lists = [x for x in (*args, *kwargs.values()) if isinstance(x, (list, tuple))]
    results = [
        op(*[element(a, i) for a in args], **{k: element(v, i) for k, v in kwargs.items()})
        for i in range(min(map(len, lists)))
    ]
    return None if results[0] is None else [r[0] for r in results]


class Alike:
    """The elements of the lists of one call, of those that look alike only the first.

    chosen    the positions of these.
    position  for each element, which of the chosen it looks like.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        lists = [x for x in given.values() if isinstance(x, (list, tuple))]
        self._n = len(lists[0]) if lists else 0
        self.chosen: list[int] = []
        self.position: list[int] = []
        if any(len(x) != self._n for x in lists):  # PyTorch refuses that
            self._n = 0
        known: dict[Any, int] = {}
        for i in range(self._n):
            key = tuple([_look(x[i]) for x in lists])
            if key not in known:
                known[key] = len(self.chosen)
                self.chosen.append(i)
            self.position.append(known[key])

    def cut(self, given: Any) -> Any:
        """A list with the chosen elements only; what is no list as it is."""
        if self._n and isinstance(given, (list, tuple)):
            return [given[i] for i in self.chosen]
        return given

    def all_of(self, results: Any) -> Any:
        """The result for each element, from the results for the chosen ones."""
        if self._n and isinstance(results, (list, tuple)) and len(results) == len(self.chosen):
            return [results[i] for i in self.position]
        return results


def _look(x: Any) -> Any:
    """What a meta function asks of an element: not the value of a float."""
    if isinstance(x, torch.Tensor):
        return spec_and_offset(x)[0]
    return (x.__class__, x) if isinstance(x, int) else x.__class__
