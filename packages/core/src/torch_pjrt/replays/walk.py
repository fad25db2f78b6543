"""A walk over everything that a step can see: by name, and as lists for a quick look."""

from __future__ import annotations

import argparse
import configparser
import functools
import sys
import threading
import weakref
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from contextvars import ContextVar
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import nn

from torch_pjrt.replays.code_names import DYNAMIC, names_of
from torch_pjrt.replays.kinds import (
    MOST_ITEMS,
    PLAIN,
    Leaf,
    is_closed,
    is_library,
    leaf_of,
    leaf_of_array,
    leaf_of_tensor,
)
from torch_pjrt.replays.watched import Watched

_SEQUENCES = (list, tuple, set, frozenset, deque)
_WRAPPERS = (staticmethod, classmethod, property, functools.cached_property)
# Objects of Python's own classes whose attributes are looked into; others only count as themselves.
_OPENED = (
    SimpleNamespace, functools.partial, type(sys.implementation), argparse.Namespace, threading.local,
    configparser.RawConfigParser, configparser.SectionProxy,
)  # fmt: skip
# Containers written in Python, and the attribute that has what is in them.
_WRAPPED: dict[type, str] = {
    UserDict: "data",
    UserList: "data",
    UserString: "data",
    ChainMap: "maps",
    weakref.WeakKeyDictionary: "data",
    weakref.WeakSet: "data",
    weakref.WeakValueDictionary: "data",
}
_WRAPPERS_OF_CONTAINERS = tuple(_WRAPPED)
_OF_MODULES = frozenset(vars(nn.Module()))
# Methods that PyTorch calls, whether or not some code names them.
_RUN_BY_PYTORCH = frozenset(
    {
        "forward", "backward", "setup_context", "vjp", "jvp", "step", "closure",
    }
)  # fmt: skip
# What a call of a module does not look at, or only where the hooks beside it are not empty.
_NOT_IN_CALLS = frozenset(
    {
        "_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks", "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
        "_non_persistent_buffers_set", "_is_full_backward_hook",
    }
)  # fmt: skip

_NOTHING: Mapping[int, Set[str]] = MappingProxyType({})


class Walk:
    """One walk.

    found     by name, what the step would find now: plain values, leaves, and where other objects were met.
    watched   the same for a quick look.
    optimizers     those that were met.

    passed_over   by the ids of dictionaries, keys whose values are not looked at.
    """

    def __init__(
        self, roots: Iterable[tuple[str, Any]], passed_over: Mapping[int, Set[str]] = _NOTHING
    ) -> None:
        self._passed_over = passed_over
        self.found: dict[str, Any] = {}
        self.watched = Watched()
        self.optimizers: list[torch.optim.Optimizer] = []
        self._looked_up: set[tuple[int, str]] = set()
        self._met: dict[int, tuple[Any, str]] = {}
        self._todo: deque[tuple[str, Any]] = deque(roots)
        self._names: set[str] = set()
        self._is_dynamic = False
        # What is looked into once some code names it.
        self._unnamed: dict[str, list[tuple[str, Any]]] = {}
        self._partly: list[tuple[str, dict[str, Any]]] = []
        self._namespaces: list[tuple[str, ModuleType | type, set[str]]] = []
        self._state: set[int] = set()
        while self._todo:
            while self._todo:
                self._visit(*self._todo.popleft())
            for namespace in self._namespaces:
                self._look_into(*namespace)
        for name, values in self._partly:
            self._choose(name, values)
        for _, namespace, looked_up in self._namespaces:
            # A name may yet be put in front of a base's.
            more = self._names & _names_in(namespace) if isinstance(namespace, type) else set()
            self.watched.named.append((vars(namespace), tuple(sorted(looked_up | more))))

    def _visit(self, name: str, x: Any) -> None:
        while name in self.found:
            name += "'"  # another object of that name
        if isinstance(x, PLAIN) and not isinstance(x, Enum):
            self.found[name] = x
            return
        if id(x) in self._met:
            self.found[name] = f"what is in `{self._met[id(x)][1]}`"
            return
        self._met[id(x)] = (x, name)
        self.found[name] = self._opened(name, x)

    def _add(self, name: str, x: Any) -> None:
        self._todo.append((name, x))

    def _opened(self, name: str, x: Any) -> Any:
        """What is found at that name; what can be seen from there is put on the list."""
        if isinstance(x, torch.Tensor):
            return self._tensor(name, x)
        if isinstance(x, (np.ndarray, bytearray, array)):
            self.watched.arrays.append(x)
            return leaf_of_array(x)
        if isinstance(x, ModuleType):
            self._namespaces.append((name, x, set()))
            return leaf_of(x)
        if isinstance(x, Enum):
            if not is_library(type(x).__module__):
                self._attributes(name, x)
            return leaf_of(x)
        if isinstance(x, type):
            if type(x) is not type:
                self._add(f"type({name})", type(x))
            return self._class(name, x)
        if isinstance(x, FunctionType):
            return self._function(name, x)
        if isinstance(x, MethodType):
            self._add(f"{name}.__self__", x.__self__)
            self._add(f"{name}.__func__", x.__func__)
            return "a method"
        if isinstance(x, CellType):
            return self._cell(name, x)
        if isinstance(x, _WRAPPERS):
            return self._wrapper(name, x)
        if isinstance(x, (dict, MappingProxyType)):
            return self._mapping(name, x)
        if isinstance(x, _SEQUENCES):
            return self._sequence(name, x)
        if isinstance(x, weakref.ref) and not isinstance(x, weakref.WeakMethod):
            self._add(f"{name}()", x())
            return leaf_of(x)
        if isinstance(x, BuiltinFunctionType):
            if x.__self__ is not None and not isinstance(x.__self__, (ModuleType, type)):
                self._add(f"{name}.__self__", x.__self__)
            return leaf_of(x) if isinstance(x.__self__, ModuleType) else x.__qualname__
        return self._object(name, x)

    def _tensor(self, name: str, x: torch.Tensor) -> Leaf:
        if x.device.type != "pjrt":
            if x.device.type == "cpu":
                self.watched.arrays.append(x)
                return leaf_of_array(x)
            return leaf_of(x)
        if x.layout is not torch.strided:
            self._add(f"{name}.requires_grad", x.requires_grad)
            return leaf_of(x)
        if id(x) in self._state:
            return leaf_of_tensor(x)
        self.watched.tensors.append(x)
        if x._backward_hooks:
            self._add(f"{name}._backward_hooks", x._backward_hooks)
        if x.is_leaf and x.requires_grad and (hooks := x._post_accumulate_grad_hooks):  # type: ignore[attr-defined]
            self._add(f"{name}._post_accumulate_grad_hooks", hooks)
        if attributes := vars(x):
            self._add(f"{name}.__dict__", attributes)
        return leaf_of_tensor(x)

    def _mapping(self, name: str, x: Any) -> str:
        n = dict.__len__(x) if isinstance(x, dict) else len(x)
        if n > MOST_ITEMS:
            return f"a {type(x).__name__} of {n} items"
        items = list(dict.items(x) if isinstance(x, dict) else x.items())
        if type(x) is OrderedDict:
            items = list(x.items())  # in its own order
        passed_over = self._passed_over.get(id(x), frozenset())
        if passed_over:
            kept = tuple([key for key, _ in items if key not in passed_over])
            self.watched.chosen.append((x, kept))
            self.watched.keyed.append(x)
        elif type(x) in (dict, OrderedDict, defaultdict):
            self.watched.mappings.append(x)
            self.watched.keyed.append(x)
        elif isinstance(x, dict):  # whatever it has made of its methods
            self.watched.sequences += [dict.keys(x), dict.values(x)]
        else:
            self.watched.proxies.append(x)
        self.found[f"the order of {name}"] = [
            repr(key) if isinstance(key, PLAIN) else "" for key, _ in items
        ]
        for i, (key, item) in enumerate(items):
            if key in passed_over:
                continue
            if isinstance(key, PLAIN):
                self._add(f"{name}[{key!r}]", item)
            else:
                self._add(f"key {i} of {name}", key)
                self._add(f"{name}[key {i}]", item)
        if type(x) not in (dict, MappingProxyType):
            self._attributes(name, x)
        return f"a {type(x).__name__} of {n} items"

    def _sequence(self, name: str, x: Any) -> str:
        if len(x) > MOST_ITEMS:
            return f"a {type(x).__name__} of {len(x)} items"
        if not isinstance(x, (tuple, frozenset)):
            self.watched.sequences.append(x)
        if isinstance(x, (set, frozenset)) and all(isinstance(item, PLAIN) for item in x):
            self.found[f"{name}'s items"] = sorted(map(repr, x))
        else:
            for i, item in enumerate([*x]):
                self._add(f"{name}[{i}]", item)
        if type(x) not in _SEQUENCES:
            self._attributes(name, x)
        return f"a {type(x).__name__} of {len(x)} items"

    def _cell(self, name: str, x: CellType) -> str:
        try:
            content = x.cell_contents
        except ValueError:  # nothing in it yet
            return "an empty cell"
        self.watched.cells.append(x)
        self._add(name, content)
        return "a cell"

    def _function(self, name: str, x: FunctionType) -> Any:
        self.watched.functions.append(x)
        cells = zip(x.__code__.co_freevars, x.__closure__ or (), strict=True)
        for free, cell in cells:
            self._add_cell(_within(name, free), cell)
        for key, item in [*(x.__kwdefaults__ or {}).items()]:
            self._add(_within(name, key), item)
        if x.__kwdefaults__:
            self.watched.mappings.append(x.__kwdefaults__)
        for i, item in enumerate(x.__defaults__ or ()):
            self._add(_within(name, f"default {i}"), item)
        if x.__dict__:
            self._add(f"{name}.__dict__", x.__dict__)
        names = names_of(x.__code__)
        if is_library(x.__module__):
            self._names_in_library(name, x)
        else:
            self._learn(names.attributes)
            self._globals(x.__globals__, names.globals)
            for module in names.imports:
                if module in sys.modules:
                    self._add(module, sys.modules[module])
        return x.__code__

    def _add_cell(self, name: str, cell: CellType) -> None:
        if id(cell) not in self._met:
            self._met[id(cell)] = (cell, name)
            self._cell(name, cell)

    def _globals(self, values: dict[str, Any], names: tuple[str, ...]) -> None:
        new = tuple(key for key in names if (id(values), key) not in self._looked_up)
        self._looked_up.update((id(values), key) for key in new)
        self.watched.named.append((values, new))
        for key in new:
            if key in values:
                self._add(key, values[key])

    def _names_in_library(self, name: str, x: FunctionType) -> None:
        """One step into a function of a library: which functions it calls, in case somebody replaced them."""
        names = names_of(x.__code__)
        self.watched.named.append((x.__globals__, names.globals))
        todo = [(key, x.__globals__[key]) for key in names.globals if key in x.__globals__]
        seen: set[int] = set()
        for key, item in todo:
            self.found.setdefault(f"{x.__module__}.{key}", _only(item))
            if isinstance(item, ModuleType) and id(item) not in seen:
                seen.add(id(item))
                there = tuple(sorted(names.attributes & vars(item).keys()))
                self.watched.named.append((vars(item), there))
                todo += [(f"{key}.{n}", vars(item)[n]) for n in there]

    def _class(self, name: str, x: type) -> Leaf:
        for part in x.__mro__[1:-1]:
            if id(part) not in self._met:
                self._add(f"{part.__module__}.{part.__qualname__}", part)
        if not is_library(x.__module__):
            self.watched.proxies.append(vars(x))
            for key, item in [*vars(x).items()]:
                self._add_named(key, f"{name}.{key}", item)
        elif issubclass(x, (nn.Module, torch.optim.Optimizer)):
            self.watched.proxies.append(vars(x))
            for key, item in [*vars(x).items()]:
                self.found[f"{name}.{key}"] = _only(item)
                if key in _RUN_BY_PYTORCH and isinstance(item, FunctionType):
                    self._add(f"{name}.{key}()", item)
        else:
            self._namespaces.append((name, x, set()))
        return leaf_of(x)

    def _wrapper(self, name: str, x: Any) -> str:
        if isinstance(x, property):
            self._add(f"{name}.fget", x.fget)
            self._add(f"{name}.fset", x.fset)
        elif isinstance(x, functools.cached_property):
            self._add(f"{name}.func", x.func)
        else:
            self._add(f"{name}.__func__", x.__func__)
        return f"a {type(x).__name__}"

    def _object(self, name: str, x: Any) -> Any:
        kind = type(x)
        if isinstance(x, functools.partial):
            self._add(f"{name}.func", x.func)
            self._add(f"{name}.args", x.args)
            self._add(f"{name}.keywords", x.keywords)
            return "a functools.partial"
        if isinstance(x, ContextVar):
            self.watched.variables.append(x)
            self._add(f"{name}.get()", x.get(None))
            return leaf_of(x)
        if isinstance(x, _WRAPPERS_OF_CONTAINERS):
            self._wrapped(name, x)
        if is_library(kind.__module__) and not _is_opened(x):
            return leaf_of(x)
        self.watched.objects.append(x)
        if id(kind) not in self._met:
            self._add(f"{kind.__module__}.{kind.__qualname__}", kind)
        if isinstance(x, torch.optim.Optimizer):
            self.optimizers.append(x)
            self._state.update(
                id(t)
                for state in [*x.state.values()]
                if isinstance(state, dict)
                for t in [*state.values()]
                if isinstance(t, torch.Tensor)
            )
        self._attributes(name, x)
        return f"a {kind.__qualname__}"

    def _wrapped(self, name: str, x: Any) -> None:
        for kind, key in _WRAPPED.items():
            if isinstance(x, kind):
                self.watched.slots.append((x, key))
                self._add(f"{name}.{key}", getattr(x, key))

    def _attributes(self, name: str, x: Any) -> None:
        values = getattr(x, "__dict__", None)
        if isinstance(values, dict):
            if is_library(type(x).__module__) and isinstance(x, nn.Module):
                names = tuple([key for key in [*values] if key not in _NOT_IN_CALLS])
                self.watched.chosen.append((values, names))
                for key in names:
                    self._add(_attribute(name, key), values[key])
            elif is_library(type(x).__module__):
                self.watched.mappings.append(values)
                for key, item in [*values.items()]:
                    self._add(_attribute(name, key), item)
            else:
                self._partly.append((name, values))
                for key, item in [*values.items()]:
                    if key not in _NOT_IN_CALLS:
                        self._add_named(key, _attribute(name, key), item)
        for part in type(x).__mro__[:-1]:
            slots = vars(part).get("__slots__", ())
            for key in (slots,) if isinstance(slots, str) else slots:
                self._slot(name, x, part, key)

    def _slot(self, name: str, x: Any, part: type, key: str) -> None:
        if key.startswith("__") and not key.endswith("__"):
            key = f"_{part.__name__.lstrip('_')}{key}"
        if key in ("__dict__", "__weakref__") or not hasattr(x, key):
            return
        self.watched.slots.append((x, key))
        self._add_named(key, f"{name}.{key}", getattr(x, key))

    def _add_named(self, key: Any, name: str, x: Any) -> None:
        """Put it on the list if some code names it, or may; else when some code does."""
        if self._is_seen(key):
            self._add(name, x)
        else:
            self._unnamed.setdefault(key, []).append((name, x))

    def _is_seen(self, key: Any) -> bool:
        return (
            self._is_dynamic
            or key in self._names
            or key in _OF_MODULES
            or key in _RUN_BY_PYTORCH
            or not isinstance(key, str)
            or (key.startswith("__") and key.endswith("__") and key not in _OF_CLASSES)
        )

    def _learn(self, names: frozenset[str]) -> None:
        self._names |= names
        if not self._is_dynamic and names & DYNAMIC:
            self._is_dynamic = True
            for waiting in self._unnamed.values():
                self._todo += waiting
            self._unnamed.clear()
        for key in names & self._unnamed.keys():
            self._todo += self._unnamed.pop(key)

    def _choose(self, name: str, values: dict[str, Any]) -> None:
        names = tuple([key for key in [*values] if key not in _NOT_IN_CALLS and self._is_seen(key)])
        if len(names) == len(values):
            self.watched.mappings.append(values)
        else:
            self.watched.chosen.append((values, names))

    def _look_into(self, name: str, x: ModuleType | type, looked_up: set[str]) -> None:
        """What the code may ask a module or a class for."""
        values = vars(x)
        for key in sorted((self._names & values.keys()) - looked_up):
            looked_up.add(key)
            self._add(f"{name}.{key}", values[key])


@functools.lru_cache(maxsize=256)
def _names_in(x: type) -> frozenset[str]:
    return frozenset(dir(x))


_OF_CLASSES = frozenset({"__doc__", "__dict__", "__weakref__", "__module__", "__annotations__"})


def _is_opened(x: Any) -> bool:
    return isinstance(x, _OPENED) or not is_closed(type(x).__module__)


def _within(function: str, name: str) -> str:
    return f"{function}: {name}" if function else name


def _attribute(name: str, key: Any) -> str:
    return f"{name}.{key}"


def _only(x: Any) -> Any:
    return x if isinstance(x, PLAIN) else leaf_of(x)
