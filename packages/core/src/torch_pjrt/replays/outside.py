"""What a step sees of the world besides its tensors: a snapshot, to be compared with a later one.

Seen is whatever can be reached from the function by names in its code: closure, defaults, globals, bound
object, attributes, functions that it calls, and what those see; modules with their hooks and classes;
optimizers; containers, and the objects among the arguments. `walk.py` is the way there;
docs/captured-steps.md lists what lies off it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from operator import is_
from types import MethodType
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers  # type: ignore[attr-defined]

from torch_pjrt.interrupts.quiet import quiet
from torch_pjrt.replays.gradients import Gradients
from torch_pjrt.replays.group_numbers import GroupNumbers, is_same, numbers_of
from torch_pjrt.replays.walk import Walk
from torch_pjrt.replays.watched import CHANGES
from torch_pjrt.run import sync

# What PyTorch does depends on these, whatever the arguments are.
_MODES: dict[str, Callable[[], Any]] = {
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.is_autocast_enabled('pjrt')": lambda: torch.is_autocast_enabled("pjrt"),
    "torch.get_autocast_dtype('pjrt')": lambda: torch.get_autocast_dtype("pjrt"),
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
    "the check for NaNs": lambda: sync.checker is not None,
    "modes of torch functions": torch._C._len_torch_function_stack,
    "modes of torch dispatch": torch._C._len_torch_dispatch_stack,
    "hooks of saved tensors": lambda: torch._C._autograd._top_saved_tensors_default_hooks(False),  # type: ignore[attr-defined]
}
# Dictionaries of hooks that PyTorch asks for every module and every optimizer.
_HOOKS = {
    f"{home.__name__}.{name}": hooks
    for home in (modules, optimizers)
    for name, hooks in vars(home).items()
    if name.startswith("_global_") and isinstance(hooks, dict)
}
_NO_NUMBERS = GroupNumbers()
# So many characters are shown of a value that changed.
_LONGEST_SHOWN = 120


class Snapshot:
    """What a step sees at one moment.

    found      by name: plain values, and which object lies where.
    gradients  those of the tensors in it.
    optimizers     those in it.
    numbers    what is in the groups of these.
    """

    def __init__(
        self, function: Any, given: Sequence[Any] = (), followed: GroupNumbers = _NO_NUMBERS
    ) -> None:
        """Look; numbers in groups of optimizers that are `followed` are not compared."""
        walk = _walked(function, given, followed.keys_of)
        self.numbers = numbers_of(walk.optimizers)
        self.found = {**dict(zip(_MODES, _modes(), strict=True)), **walk.found}
        self.optimizers = walk.optimizers
        self.gradients = Gradients([x for x in walk.watched.tensors if x.is_leaf])
        self._modes = _modes()
        self._given = tuple(given)
        self._watched = walk.watched

    def holds(self, given: Sequence[Any] = ()) -> bool:
        """A quick look: whether every object is the one that was there.

        Where one is not, it may still be equal: then the snapshots have to be compared.
        """
        return (
            self._modes == _modes()
            and len(given) == len(self._given)
            and all(map(is_, given, self._given))
            and self._watched.holds()
        )

    def with_gradients(self, gradients: Gradients) -> Snapshot:
        """The same, with these gradients."""
        same = copy(self)
        same.gradients = gradients
        return same


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    """In words, what is another than before."""
    x, y = before.found, after.found
    return [
        f"`{name}` was {_shown(x.get(name, 'not there'))}, is {_shown(y.get(name, 'not there'))}"
        for name in {**x, **y}
        if not _same(x.get(name, _NOTHING), y.get(name, _NOTHING))
    ]


_NOTHING = object()


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _same(x: Any, y: Any) -> bool:
    if x.__class__ is float and y.__class__ is float:
        return is_same(x, y)
    return x is y or (x.__class__ is y.__class__ and bool(x == y or (x != x and y != y)))


def _walked(function: Any, given: Sequence[Any], passed_over: Mapping[int, Set[str]]) -> Walk:
    """The walk, and what is there noted. It begins again where another thread has taken something away."""
    roots = [*_roots(function, given), *_HOOKS.items(), ("torch.Tensor", torch.Tensor)]
    for _ in range(_MOST_WALKS - 1):
        with suppress(*CHANGES), quiet():
            walk = Walk(roots, passed_over)
            walk.watched.begin()
            return walk
    walk = Walk(roots, passed_over)
    walk.watched.begin()
    return walk


_MOST_WALKS = 4


def _roots(function: Any, given: Sequence[Any]) -> list[tuple[str, Any]]:
    arguments = [(f"argument {i}", x) for i, x in enumerate(given)]
    if isinstance(function, MethodType):
        return [("self", function.__self__), ("", function.__func__), *arguments]
    return [("", function), *arguments]


def _modes() -> tuple[Any, ...]:
    return tuple([read() for read in _MODES.values()])
