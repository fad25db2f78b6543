"""Names of PyTorch that stand for a class of ours: `torch.Generator`, `torch.Stream`, `torch.Event`.

PyTorch makes their objects in C++, where a backend written in Python has nothing to say. So the name stands
for a class that is PyTorch's in all respects but one: calling it asks us first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class _Standing(type):
    """Calls, `isinstance`, `issubclass`, `==` mean PyTorch's class; a subclass of the user's is its own."""

    original: type
    make: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "original" in vars(cls):
            return vars(cls)["make"](cls.original, *args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, x: Any) -> bool:
        return (
            isinstance(x, cls.original) if "original" in vars(cls) else super().__instancecheck__(x)
        )

    def __subclasscheck__(cls, c: type) -> bool:
        return (
            issubclass(c, cls.original) if "original" in vars(cls) else super().__subclasscheck__(c)
        )

    def __eq__(cls, other: object) -> bool:
        """Dynamo asks whether an object's type is one of a tuple that has this name."""
        return cls is other or ("original" in vars(cls) and cls.original is other)

    def __hash__(cls) -> int:
        return hash(cls.original) if "original" in vars(cls) else super().__hash__()


def stand_for(name: str, make: Callable[..., Any]) -> None:
    """Let `torch.<name>(...)` be `make(original, ...)`; does nothing the second time."""
    original = getattr(torch._C, name)
    if getattr(torch, name) is original:
        body = {
            "original": original,
            "make": make,
            "__doc__": original.__doc__,
            "__module__": "torch",
        }
        metaclass = type(name, (_Standing, type(original)), {})  # PyTorch's have one of their own
        setattr(torch, name, metaclass(name, (original,), body))


def is_pjrt(device: Any) -> bool:
    """Whether it names a device of ours. PyTorch says what is wrong with one that names none."""
    try:
        return device is not None and torch.device(device).type == "pjrt"
    except (RuntimeError, TypeError):
        return False
