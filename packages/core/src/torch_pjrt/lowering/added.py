"""Rules that packages add while the process runs, for operators of their own; a hook gives those of plugins.

A program with such an operator is kept on disk only if another process can know that its rule is the
same: where the rule is a function of a module's own, or where who adds it says in a text what it depends on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.session import session

ADDED = LoweringTable("added while the process runs")

# By operator, or by kind of annotation: what a rule depends on. A file or a package, a text, or None:
# unknown.
_sources: dict[Any, Path | str | None] = session.own("what added rules depend on", {})


def note_source(of: Any, rule: Callable[..., Any] | None, fingerprint: str | None) -> None:
    """Remember what a rule depends on: `fingerprint` if it is given, else the code of the rule's package."""
    if fingerprint is not None or rule is None:
        _sources[of] = fingerprint or ""
    else:
        _sources[of] = _file_of(rule)


def is_added(of: Any) -> bool:
    """Whether there is such a rule for the operator or the kind of annotation."""
    return of in _sources


def source_of(of: Any) -> Path | str | None:
    """What that rule depends on; None where nobody can say."""
    return _sources[of]


def _file_of(rule: Any) -> Path | None:
    """The package, or the file, of a function of a module's own; None for others."""
    while hasattr(rule, "computes_as_wrapped"):
        rule = rule.__wrapped__
    name = getattr(rule, "__module__", None) or ""
    if getattr(rule, "__closure__", ()) is not None or "<locals>" in rule.__qualname__:
        return None  # an object, or a function of a function's own
    module = sys.modules.get(name.partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None or name == "__main__":
        return None
    return Path(file).parent if hasattr(module, "__path__") else Path(file)
