"""Another function in the place of a library's own, which it may call. All patches are made of these."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


class NotThere(AttributeError):
    """The library has no such name: another version than those that a patch was tested with."""


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Have `owner.name(...)` call `around(original, ...)`. `owner` is a module or a class.

    Static methods stay static. Does nothing the second time for the same `around`; raises `NotThere`.
    """
    found = vars(owner).get(name)
    if found is None:
        raise NotThere(f"`{_name_of(owner)}` has no `{name}`")
    is_static = isinstance(found, staticmethod)
    original = found.__func__ if is_static else found
    if getattr(original, "around", None) is around:
        return

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    call.around = around  # type: ignore[attr-defined]
    setattr(owner, name, staticmethod(call) if is_static else call)


def wrap_property(
    owner: type, name: str, around: Callable[[Callable[[Any], Any], Any], Any]
) -> None:
    """Have the property's value be `around(original, self)`, a cached one's too. Raises `NotThere`."""
    found = vars(owner).get(name)
    if isinstance(found, property) and found.fget is not None:
        original = found.fget
    elif isinstance(found, functools.cached_property):
        original = found.func
    else:
        raise NotThere(f"`{_name_of(owner)}` has no property `{name}`")
    if getattr(original, "around", None) is around:
        return

    @functools.wraps(original)
    def get(self: Any) -> Any:
        return around(original, self)

    get.around = around  # type: ignore[attr-defined]
    if isinstance(found, property):
        setattr(owner, name, property(get, found.fset, found.fdel, found.__doc__))
    else:
        replaced = functools.cached_property(get)
        replaced.__set_name__(owner, name)
        setattr(owner, name, replaced)


def replace_of_pytorch(module: ModuleType, **functions: Callable[..., Any]) -> None:
    """Have what a module calls `torch` be PyTorch, but for these functions. Does nothing the second time."""
    if module.torch is torch:
        module.torch = _PyTorchBut("torch")  # type: ignore[attr-defined]
        vars(module.torch).update(functions)


class _PyTorchBut(ModuleType):
    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)


def _name_of(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or owner.__name__
