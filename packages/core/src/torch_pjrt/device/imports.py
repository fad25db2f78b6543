"""What is done once a module has been imported, or while it is, without importing it.

Dynamo and Inductor take seconds to import, and most processes never do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torch_pjrt.session import session

Then = Callable[[Any], None]
During = Callable[[], AbstractContextManager[None]]

_asked: set[tuple[str, Then | During]] = session.own("what is done after imports", set())
_arriving: dict[str, list[Then]] = session.own("what is done after imports that have begun", {})


def after_import(name: str, then: Then) -> None:
    """Call `then` with the module now, or when it is imported. `then` must not raise.

    Several may wait for one module: they are called in the order in which they came. Who asks again with the
    same function, as a plugin does whose hooks are called for each device, is not called again.

        >>> after_import("torch.nn", lambda module: print(module.__name__))
        torch.nn
    """
    if (name, then) in _asked:
        return
    _asked.add((name, then))
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Watch(name, then))
    elif getattr(getattr(module, "__spec__", None), "_initializing", False):
        _call_at_the_end(module, then)
    else:
        then(module)


def during_import(name: str, during: During) -> None:
    """Import the module, when somebody does, within `during()`. Does nothing where it has been imported.

    >>> during_import("math", contextlib.nullcontext)
    """
    if (name, during) in _asked or name in sys.modules:
        return
    _asked.add((name, during))
    sys.meta_path.insert(0, _Watch(name, lambda module: None, during))


def _call_at_the_end(module: ModuleType, then: Then) -> None:
    """Call `then` when the module, whose code runs now, has been imported: it may be what imports PyTorch.

    Python's import says of the module's spec that it is no longer being initialized, at the end.
    """
    spec = module.__spec__
    waiting = _arriving.setdefault(module.__name__, [])
    waiting.append(then)
    if spec is not None and not isinstance(spec, _Arriving):
        spec.__class__ = type("ArrivingSpec", (_Arriving, type(spec)), {})


class _Arriving(ModuleSpec):
    """The spec of a module whose code runs now; another class's again when that has ended."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            self.__class__ = type(self).__mro__[2]
            module = sys.modules.get(self.name)
            for then in _arriving.pop(self.name, ()):
                if module is None:  # its import has failed: it may be tried again
                    sys.meta_path.insert(0, _Watch(self.name, then))
                else:
                    then(module)


class _Watch(MetaPathFinder):
    """Sees the import of one module, and is gone then. Who only asks for its spec leaves it waiting."""

    def __init__(self, name: str, then: Then, during: During = nullcontext) -> None:
        self.during = during
        self._name = name
        self._then = then
        self._asking: set[int] = set()  # threads that ask the other finders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        thread = threading.get_ident()
        if fullname != self._name or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = _found(fullname, path, target)  # by who else waits for it, too
        finally:
            self._asking.discard(thread)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenCall(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        """The module's code has run."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


def _found(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """What the finders say."""
    for finder in list(sys.meta_path):
        if (spec := finder.find_spec(fullname, path, target)) is not None:
            return spec
    return None


class _ThenCall(Loader):
    """Loads as another loader does, and leaves no trace of itself."""

    def __init__(self, loader: Any, watch: _Watch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        """What else the loader has: `python -m` asks for code and runs it itself, so `then` is not called."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with self._watch.during():
            self._loader.exec_module(module)
        self._watch.imported(module)
