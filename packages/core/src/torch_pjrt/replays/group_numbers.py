"""Numbers in the groups of optimizers that change from call to call: learning rates, momenta.

They are in the groups as floats, or in tuples of floats (`betas`). While a step is observed, traced floats
lie in their places. Where an operator takes one that was computed from these, the recording has its formula,
and replays compute it anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_pjrt.graph.tape import Tape, current
from torch_pjrt.replays.traced_floats import Comparisons, Formula, TracedFloat, given

Group = dict[str, Any]
# Of a number that an operator took, formulas that give it.
Formulas = Mapping[int, tuple[Formula, ...]]
_NONE: Formulas = {}
# By the id of a group and the key: the group, and what lies there.
Found = dict[tuple[int, str], tuple[Group, Any]]


def numbers_of(optimizers: Iterable[torch.optim.Optimizer]) -> Found:
    """By group and key, all floats and tuples of floats in the groups of these."""
    return {
        (id(group), key): (group, x)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for key, x in group.items()
        if _floats_in(x)
    }


def _floats_in(x: Any) -> tuple[float, ...]:
    """What is there if it is a float or a tuple of floats; else nothing."""
    if x.__class__ is float:
        return (x,)
    if x.__class__ is tuple and x and all(item.__class__ is float for item in x):
        return x
    return ()


def _plain(x: Any) -> Any:
    """What a step left, without what was traced."""
    if isinstance(x, TracedFloat):
        return float(x)
    return tuple(map(_plain, x)) if x.__class__ is tuple else x


class GroupNumbers:
    """Some of them, in an order.

    keys_of   by the ids of groups, where they lie in these.
    """

    def __init__(self, members: Iterable[tuple[Group, str]] = ()) -> None:
        self._members = list(members)
        self.keys_of: dict[int, set[str]] = {}
        for group, key in self._members:
            self.keys_of.setdefault(id(group), set()).add(key)

    def read(self) -> tuple[float, ...] | None:
        """What they are now, or None: something else lies in one of their places."""
        found: list[float] = []
        for group, key in self._members:
            floats = _floats_in(group.get(key))
            if not floats:
                return None
            found += floats
        return tuple(found)

    def still_there(self) -> GroupNumbers:
        """Those in whose places numbers still lie."""
        return GroupNumbers([(g, key) for g, key in self._members if _floats_in(g.get(key))])

    def with_changed(self, before: Found, now: Found) -> GroupNumbers:
        """These, and those that are others now than before."""
        members = [
            (group, key)
            for (group_id, key), (group, x) in now.items()
            if (group_id, key) in before
            and key not in self.keys_of.get(group_id, ())
            and not same_floats(_floats_in(before[group_id, key][1]), _floats_in(x))
        ]
        return GroupNumbers([*self._members, *members])

    def names(self) -> str:
        """Where they are, in words."""
        return ", ".join(sorted({f"`{key}`" for _, key in self._members}))

    def __len__(self) -> int:
        return len(self._members)

    @contextmanager
    def traced(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[Following]:
        """Meanwhile they are traced, and it is noted where operators of these optimizers' steps take them."""
        floats = self.read() or ()
        following = Following(floats)
        if not floats:
            yield following
            return
        traced = given(floats, following.comparisons)
        put: list[tuple[Group, str, Any, Any]] = []
        try:
            for group, key in self._members:
                before = group[key]
                n = len(_floats_in(before))
                mine, traced = traced[:n], traced[n:]
                ours = tuple(mine) if before.__class__ is tuple else mine[0]
                put.append((group, key, before, ours))
                group[key] = ours
            with _noting(following, optimizers):
                yield following
        finally:
            following.comparisons.are_over = True
            for group, key, before, ours in put:
                now = group.get(key)
                if now is ours:
                    group[key] = before
                elif now is not before:
                    following.changed.append(key)
                    if key in group:
                        group[key] = _plain(now)


@dataclass(slots=True)
class Following:
    """What was seen of the numbers in one call.

    floats       what they were.
    comparisons  what was compared of them.
    formulas     by the tape, and by the position among its floats.
    changed      keys that the step itself changed.
    """

    floats: tuple[float, ...]
    comparisons: Comparisons = field(default_factory=Comparisons)
    formulas: dict[int, dict[int, tuple[Formula, ...]]] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)

    def of(self, tape: Tape) -> Formulas:
        """The formulas of the floats of a tape."""
        return self.formulas.get(tape.serial, _NONE)

    def note(self, tape: Tape, start: int, traced: Sequence[TracedFloat]) -> None:
        """An operator has taken some of these: they are among the floats of the tape from `start` on."""
        for position in range(start, len(tape.floats)):
            found = tuple(x.formula for x in traced if is_same(float(x), tape.floats[position]))
            if found:
                self.formulas.setdefault(tape.serial, {})[position] = found


def same_floats(x: Sequence[float], y: Sequence[float]) -> bool:
    """Whether each is the same as its counterpart."""
    return len(x) == len(y) and all(map(is_same, x, y))


def is_same(x: float, y: float) -> bool:
    """Whether two floats are the same; zeros have signs, and no number is no number."""
    if x == y:
        return x != 0 or math.copysign(1.0, x) == math.copysign(1.0, y)
    return x != x and y != y


class _Noting(TorchFunctionMode):
    """Notes for each call of an operator which traced floats it takes."""

    def __init__(self, following: Following) -> None:
        super().__init__()
        self._following = following

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        traced = [x for x in _flat((*args, *kwargs.values())) if x.__class__ is TracedFloat]
        if not traced:
            return func(*args, **kwargs)
        tape = current()
        start = len(tape.floats)
        result = func(*args, **kwargs)
        if current() is tape:
            self._following.note(tape, start, traced)
        return result


def _flat(items: Iterable[Any]) -> Iterator[Any]:
    for x in items:
        if x.__class__ in (list, tuple):
            yield from x
        else:
            yield x


@contextmanager
def _noting(following: Following, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """While these take steps. Elsewhere a mode would be in the way: `torch.compile` looks at modes."""
    with ExitStack() as stack:
        running: list[ExitStack] = []

        def begin(*_: Any) -> None:
            running.append(ExitStack())
            running[-1].enter_context(_Noting(following))

        def end(*_: Any) -> None:
            if running:
                running.pop().close()

        for optimizer in optimizers:
            if hasattr(optimizer, "_optimizer_step_pre_hooks"):
                stack.callback(optimizer.register_step_pre_hook(begin).remove)
                stack.callback(optimizer.register_step_post_hook(end).remove)
        stack.callback(lambda: [end() for _ in [*running]])
        yield
