"""Names of PyTorch's and JAX's that our packages use, and which of them a version lacks.

    python tools/names_in_use.py all > oldest.json    # in each environment: names of the modules concerned
    python tools/names_in_use.py lacking tested.json oldest.json newest.json > FILE

FILE is packages/core/tests/names_that_versions_lack.txt: by it a test finds a use without the other versions.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "jax", "jaxlib")
# What a condition or a `try` asks that has another way for what is not there.
ASKING = ("hasattr", "find_spec", "TYPE_CHECKING", "getattr")


@dataclass(frozen=True, slots=True)
class Use:
    """A dotted name in a file of ours. `call` is the call that it is the function of."""

    name: str
    file: str
    line: int
    guarded: bool
    call: ast.Call | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.file}:{self.line})"


def uses() -> Iterator[Use]:
    """All of them, of all packages."""
    for path in sorted(ROOT.glob("packages/*/src/*/**/*.py")):
        yield from uses_in(path.read_text(), str(path.relative_to(ROOT / "packages")))


def uses_in(text: str, file: str) -> Iterator[Use]:
    """Those of one file. An operator (`torch.ops...`) is another matter: `overloads.py` has names for all."""
    tree = ast.parse(text)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    guards = _guards(tree)
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        for name, dotted in _imported(node):
            known[name] = dotted if name != dotted.partition(".")[0] else name
            yield Use(dotted, file, node.lineno, _is_guarded(node, parents, guards))  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or isinstance(
            parents[node], ast.Attribute
        ):
            continue
        first, *rest = _chain(node)
        if first not in known or (not rest and not _called(node, parents)):
            continue
        name = ".".join([known[first], *rest])
        if not name.startswith("torch.ops."):
            guarded = _is_guarded(node, parents, guards)
            yield Use(name, file, node.lineno, guarded, _called(node, parents))


def found(name: str) -> Any:
    """The object of a dotted name. `AttributeError` where there is none; warnings of PyTorch and JAX pass."""
    first, *rest = name.split(".")
    it: Any = importlib.import_module(first)
    path = first
    for part in rest:
        path = f"{path}.{part}"
        try:
            it = getattr(it, part)
        except AttributeError:
            if not isinstance(it, ModuleType):
                if isinstance(it, type):
                    raise
                return None  # an attribute of an object: nobody can know
            it = _module(path)
    return it


def misfit(function: Any, call: ast.Call) -> str | None:
    """Why a call does not fit the signature of its function; None where it does, or nobody can know."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    names = {keyword.arg: None for keyword in call.keywords if keyword.arg is not None}
    starred = any(isinstance(x, ast.Starred) for x in call.args)
    try:
        if starred or len(names) < len(call.keywords):
            signature.bind_partial(**names)
        else:
            signature.bind(*[None] * len(call.args), **names)
    except TypeError as error:
        return str(error)
    return None


def all_names() -> dict[str, list[str]]:
    """The names of each module that our packages name."""
    modules: dict[str, ModuleType] = {}
    for use in uses():
        parts = use.name.split(".")
        for n in range(1, len(parts) + 1):
            try:
                it = found(".".join(parts[:n]))
            except (AttributeError, ImportError):
                break
            if isinstance(it, ModuleType):
                modules[".".join(parts[:n])] = it
    return {name: sorted(dir(module)) for name, module in sorted(modules.items())}


def lacking(tested: dict[str, list[str]], others: list[dict[str, list[str]]]) -> Iterator[str]:
    """A line for each module with its names that one of the other versions lacks."""
    for module, names in tested.items():
        everywhere = set.intersection(*[set(other.get(module, ())) for other in others])
        if not set(names) <= everywhere:
            yield f"{module}: {' '.join(sorted(set(names) - everywhere))}"


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What an import binds, and to which dotted name."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] in PACKAGES:
                yield alias.asname or alias.name.partition(".")[0], alias.name
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        of_theirs = node.module.partition(".")[0] in PACKAGES
        for alias in node.names if of_theirs else ():
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _chain(node: ast.AST) -> list[str]:
    """`["a", "b"]` of `a.b`; [""] of what does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else [""]


def _called(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.Call | None:
    parent = parents[node]
    return parent if isinstance(parent, ast.Call) and parent.func is node else None


def _guards(tree: ast.AST) -> set[ast.AST]:
    """What is behind a question, or in a `try` that catches its absence."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and node.handlers:
            caught = [ast.unparse(h.type) if h.type else "" for h in node.handlers]
            if any(not c or "ImportError" in c or "AttributeError" in c for c in caught):
                found.update(node.body)
        elif isinstance(node, ast.If | ast.IfExp | ast.BoolOp | ast.comprehension):
            asked = ast.unparse(getattr(node, "test", node))
            if any(word in asked for word in ASKING):
                found.add(node)
    return found


def _is_guarded(node: ast.AST, parents: dict[ast.AST, ast.AST], guards: set[ast.AST]) -> bool:
    at: ast.AST | None = node
    while at is not None:
        if at in guards:
            return True
        at = parents.get(at)
    return False


def _module(path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ImportError as error:
        raise AttributeError(f"there is no `{path}`") from error


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "all":
        print(json.dumps(all_names()))
    else:
        tested, *others = (json.loads(Path(path).read_text()) for path in sys.argv[2:])
        print(*lacking(tested, others), sep="\n")
