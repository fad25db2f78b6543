"""An object as a function reads it: only those of its attributes that were read.

A captured step is compared with all that it can see. A `Trainer` can see its data, its callbacks and its log,
which change in each step, although a step reads none of them. So the step is given a stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Original:
    """What a stand-in stands for.

    inner   attributes of these classes get stand-ins, too.
    names   of the attributes that were read.
    """

    x: Any
    inner: tuple[type, ...]
    names: set[str] = field(default_factory=set)


_originals: WeakKeyDictionary[Any, _Original] = WeakKeyDictionary()
_kinds: dict[type, type] = {}


def as_read(x: T, inner: tuple[type, ...] = ()) -> T:
    """A stand-in for `x`, of a class derived from its own; it gets each attribute at its first read.

    What is set on the stand-in is set on `x`, too. Attributes of the classes `inner` get stand-ins.
    """
    kind = _kinds.get(type(x))
    if kind is None:
        kind = _kinds[type(x)] = type(
            type(x).__name__,
            (type(x),),
            {
                "__getattribute__": _get,
                "__setattr__": _set,
                # Of a library's object, a captured step compares all attributes, whatever code names.
                "__module__": type(x).__mro__[-2].__module__,
            },
        )
    made: Any = object.__new__(kind)
    _originals[made] = _Original(x, inner)
    return made


def refresh(stand_in: Any) -> None:
    """Give it what its object has now of what was read."""
    original, values = _originals[stand_in], vars(stand_in)
    there = vars(original.x)
    for name in original.names:
        if name not in there:
            values.pop(name, None)
            continue
        own = _originals.get(values.get(name)) if isinstance(there[name], original.inner) else None
        if own is not None and own.x is there[name]:
            refresh(values[name])
        else:
            values[name] = _given(original, there[name])


def _get(self: Any, name: str) -> Any:
    if not name.startswith("__"):
        original, values = _originals[self], object.__getattribute__(self, "__dict__")
        original.names.add(name)
        if name not in values and name in vars(original.x):
            values[name] = _given(original, vars(original.x)[name])
    return object.__getattribute__(self, name)


def _given(original: _Original, x: Any) -> Any:
    return as_read(x, original.inner) if isinstance(x, original.inner) else x


def _set(self: Any, name: str, value: Any) -> None:
    original = _originals[self]
    setattr(original.x, name, value)
    original.names.add(name)
    if name in vars(original.x):
        vars(self)[name] = value
