"""Objects as text that is the same in every process, and different for what differs.

What cannot be told so is `NotPortable`, with words for it: a program that depends on it is not kept on disk.
"""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from torch_pjrt.graph.signature import InternalOp, NumberSlot, Slot
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.overloads import Absent

# What PyTorch's own objects are written as says all about them.
_PLAIN = (
    bool,
    int,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    np.dtype,
    PurePath,
)
_OVERLOAD = torch._ops.OpOverload

# Packages whose version stands for their code.
VERSIONED = ("torch", "jax", "jaxlib", "numpy")


class NotPortable(Exception):
    """What a program depends on is known to this process only, a function for example; says what."""


def written(x: Any) -> str:
    """Plain values, what graphs are made of, and collections and frozen dataclasses of these, as text."""
    if isinstance(x, enum.Enum):
        return f"{_named(type(x))}:{x.name}:{_value(x)}"
    if x is None or isinstance(x, _PLAIN):
        return f"{x.__class__.__name__}:{x!r}"
    if isinstance(x, float):
        return x.hex()
    if isinstance(x, complex):
        return f"{x.real.hex()}+{x.imag.hex()}j"
    if isinstance(x, (list, tuple)):
        return f"{x.__class__.__name__}({','.join(map(written, x))})"
    if isinstance(x, (set, frozenset)):
        return f"{x.__class__.__name__}({','.join(sorted(map(written, x)))})"
    if isinstance(x, dict):
        return f"{{{','.join(f'{written(k)}={written(v)}' for k, v in x.items())}}}"
    if isinstance(x, TensorSpec):
        return f"{x.dtype}{x.shape}{x.strides}"
    if isinstance(x, Slot):
        return f"slot {x.index}"
    if isinstance(x, NumberSlot):
        return f"{x.kind.__name__} {x.index}"
    if isinstance(x, (_OVERLOAD, InternalOp, Absent)):
        return str(x)
    raise NotPortable(f"{x.__class__.__qualname__} in it")


def portable_text(x: Any, what: str) -> str:
    """An object that makes programs, with its options and its code: a pass, a rule. `what` is its name.

    As `written`; beside it functions and classes that their module has under their name, functions made
    by functions, `functools.partial`, and frozen dataclasses, each with the code of its package.
    """
    try:
        return _text(x, ())
    except NotPortable as why:
        raise NotPortable(f"{what}: {why}") from None


def _text(x: Any, outer: tuple[int, ...]) -> str:
    if id(x) in outer:
        return f"outer {outer.index(id(x))}"
    within = (*outer, id(x))
    if isinstance(x, (list, tuple)):
        return f"{x.__class__.__name__}({','.join(_text(e, within) for e in x)})"
    if isinstance(x, (set, frozenset)):
        return f"{x.__class__.__name__}({','.join(sorted(_text(e, within) for e in x))})"
    if isinstance(x, dict):
        pairs = (f"{_text(k, within)}={_text(v, within)}" for k, v in x.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(x, partial):
        return f"partial({_text((x.func, x.args, x.keywords), within)})"
    if isinstance(x, ModuleType):
        return f"module {x.__name__} {_code(x.__name__)}"
    if _has_own_name(x):
        return _named(x)
    if isinstance(x, FunctionType):
        return _of_function(x, within)
    if is_dataclass(x):
        return _of_options(x, within)
    try:
        return written(x)
    except NotPortable:
        if _has_no_state(x):
            return _named(type(x))
        raise NotPortable(f"{_article(type(x))} that is no frozen dataclass") from None


def _of_options(x: Any, within: tuple[int, ...]) -> str:
    if not type(x).__dataclass_params__.frozen:
        raise NotPortable(f"the dataclass {type(x).__qualname__}, which is not frozen")
    options = []
    for name, value in _options(x):
        try:
            options.append(f"{name}={_text(value, within)}")
        except NotPortable as why:
            raise NotPortable(f"its option `{name}` is {why}") from None
    return f"{_named(type(x))}({','.join(options)})"


def _options(x: Any) -> list[tuple[str, Any]]:
    """All that an object has of its own, by name: fields, and what somebody has set beside them."""
    slots = (n for c in type(x).__mro__ for n in _slots(c))
    declared = (f.name for f in fields(x)) if is_dataclass(x) else ()
    names = dict.fromkeys((*declared, *slots, *getattr(x, "__dict__", ())))
    return [(n, getattr(x, n)) for n in names if n != "__weakref__" and hasattr(x, n)]


def _slots(kind: type) -> Iterator[str]:
    """The names of a class's own slots; private ones as Python changes them."""
    slots = vars(kind).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        private = name.startswith("__") and not name.endswith("__")
        yield f"_{kind.__name__.lstrip('_')}{name}" if private else name


# An object says by one of these what copies and pickles of it have; of others Python knows all.
_REDUCES = ("__reduce__", "__reduce_ex__", "__getstate__")


def _has_no_state(x: Any) -> bool:
    """Whether its class says all of it: it has no attributes of its own, and nothing in C either."""
    kind = type(x)
    if any(getattr(kind, n, None) is not getattr(object, n, None) for n in _REDUCES):
        return False
    try:
        object.__reduce_ex__(x, 2)
    except TypeError:
        return False
    return not _options(x)


def _of_function(f: FunctionType, within: tuple[int, ...]) -> str:
    """A function that has no name of its own: its code, what it was made with, and what it wraps."""
    cells = [c.cell_contents for c in f.__closure__ or () if not _is_empty(c)]
    made_with = (cells, f.__defaults__, f.__kwdefaults__)
    named = f"{f.__module__}:{f.__qualname__}:{_of_code(f.__code__)}"
    return f"{named}({_text(made_with, within)}) {_code(f.__module__)}"


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def _of_code(code: CodeType) -> str:
    """Which of the functions of a file it is: where each of its instructions stands."""
    where = f"{code.co_firstlineno} {list(code.co_positions())}"
    return hashlib.sha256(where.encode() + code.co_code).hexdigest()[:16]


def _has_own_name(x: Any) -> bool:
    """Whether its module has it, a function or a class, under its own name."""
    name, module = getattr(x, "__qualname__", None), getattr(x, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or not callable(x):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is x


def _named(x: Any) -> str:
    if not _has_own_name(x):
        raise NotPortable(f"{x.__qualname__}, which its module does not have under this name")
    return f"{x.__module__}:{x.__qualname__} {_code(x.__module__)}"


def _value(x: enum.Enum) -> str:
    return written(x.value) if isinstance(x, enum.Flag) else ""


def _article(kind: type) -> str:
    name = kind.__qualname__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _code(module: str | None) -> str:
    """The code that `module` belongs to: nothing where versions say it, else its stamp."""
    if module is None:  # `exec` ran it, with names of its own
        raise NotPortable("code that is in no module")
    top = module.partition(".")[0]
    if top in VERSIONED or top in sys.stdlib_module_names:
        return ""
    found = package_of(module) if module != "__main__" else None
    if found is None:
        raise NotPortable(f"code of `{module}`, which is in no file")
    return f"{found} {_stamp_of_loaded(found)}"


@cache
def _stamp_of_loaded(folder: Path) -> str:
    return stamp(folder)


def package_of(module: str) -> Path | None:
    """The folder of the outermost package with code that a module is in, or its file; None without one.

    A namespace package has no file: what lies in it is a package of its own.
    """
    parts = module.split(".")
    for n in range(1, len(parts) + 1):
        found = sys.modules.get(".".join(parts[:n]))
        if file := getattr(found, "__file__", None):
            return Path(file).parent if hasattr(found, "__path__") else Path(file)
    return None


def stamp(folder: Path) -> str:
    """A digest of the names, sizes and times of the sources: it changes when anybody edits one."""
    digest = hashlib.sha256()
    for path in sorted(_sources(folder)):
        found = path.stat()
        digest.update(f"{path}{found.st_size}{found.st_mtime_ns}".encode())
    return digest.hexdigest()


def _sources(folder: Path) -> Iterator[Path]:
    yield from folder.rglob("*.py") if folder.is_dir() else [folder]
