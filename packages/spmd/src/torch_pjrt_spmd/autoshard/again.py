"""Modules that compute their activations again in backward, as a plan has it.

`torch.utils.checkpoint` is around a module's `forward`: an object in the module's own `__dict__`, which
knows the module. A copy of the module has one of its own, which computes with the copy's weights; it is
pickled with the module. It holds the module weakly: no cycle keeps a model's tensors after its last name is
gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

_as_written: ContextVar[bool] = ContextVar("modules run as they are written", default=False)


class ComputedAgain:
    """The `forward` of one module, computed again in backward.

    before   what the module's `__dict__` had as its `forward`; None: nothing, its class has it.
    """

    def __init__(self, module: torch.nn.Module, before: Callable[..., Any] | None = None) -> None:
        self._module, self.before = weakref.ref(module), before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        assert module is not None  # who calls it holds it
        if self.before is not None:
            return self._run(self.before, args, kwargs)
        return self._run(type(module).forward.__get__(module), args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ComputedAgain:
        import copy

        module = self._module()
        before = copy.deepcopy(self.before, memo)
        return ComputedAgain(memo.get(id(module), module), before)

    def __reduce__(self) -> tuple[Any, ...]:
        return ComputedAgain, (self._module(), self.before)

    @staticmethod
    def _run(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or _as_written.get():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def compute_again(module: torch.nn.Module) -> None:
    """Have a module do so; once, however often it is asked."""
    before = module.__dict__.get("forward")
    if not isinstance(before, ComputedAgain):
        module.__dict__["forward"] = ComputedAgain(module, before)


def keep_all(module: torch.nn.Module) -> None:
    """Have a module keep its activations, as it did before `compute_again`."""
    forward = module.__dict__.get("forward")
    if isinstance(forward, ComputedAgain):
        del module.__dict__["forward"]
        if forward.before is not None:
            module.__dict__["forward"] = forward.before


def is_computed_again(module: torch.nn.Module) -> bool:
    return isinstance(module.__dict__.get("forward"), ComputedAgain)


@contextmanager
def not_computed_again() -> Iterator[None]:
    """Within the block, modules keep all: what a plan is made of is the step as it is written."""
    token = _as_written.set(True)
    try:
        yield
    finally:
        _as_written.reset(token)
