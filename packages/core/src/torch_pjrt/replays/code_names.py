"""What a function's bytecode names: globals, attributes, modules that it imports."""

from __future__ import annotations

import dis
import functools
from dataclasses import dataclass
from types import CodeType

_OF_GLOBALS = ("_GLOBAL", "_NAME")  # so end the names of instructions that read or write globals
_LONGEST_NAME = 64

# Who uses these may mean attributes that no code names.
DYNAMIC = frozenset(
    {
        "getattr", "setattr", "vars", "__dict__", "dir", "eval", "exec", "attrgetter",
        "methodcaller", "asdict", "astuple", "fields", "replace", "copy", "deepcopy",
        "__getattribute__", "__getstate__",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """All that one code object names, nested ones included.

    attributes  names of attributes, and strings that may be such (`getattr(x, "name")`).
    """

    globals: tuple[str, ...]
    attributes: frozenset[str]
    imports: tuple[str, ...]


@functools.lru_cache(maxsize=8192)
def names_of(code: CodeType) -> Names:
    """The names in a code object."""
    in_globals: dict[str, None] = {}
    imports: dict[str, None] = {}
    attributes = set(code.co_names)
    for x in dis.get_instructions(code):
        if x.opname == "IMPORT_NAME":
            imports[x.argval] = None
        elif x.opname.endswith(_OF_GLOBALS):
            in_globals[x.argval] = None
    for constant in code.co_consts:
        if isinstance(constant, str) and len(constant) < _LONGEST_NAME:
            attributes.add(constant)
        elif isinstance(constant, tuple):
            attributes.update(x for x in constant if isinstance(x, str))
        elif isinstance(constant, CodeType):
            nested = names_of(constant)
            in_globals.update(dict.fromkeys(nested.globals))
            imports.update(dict.fromkeys(nested.imports))
            attributes |= nested.attributes
    return Names(tuple(in_globals), frozenset(attributes), tuple(imports))
