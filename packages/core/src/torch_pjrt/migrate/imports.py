"""The imports of a script that was rewritten: those of torch_xla go where nothing uses them any more."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence

from torch_pjrt.migrate.edits import Edits
from torch_pjrt.migrate.uses import Use, Uses, bindings


def renew(
    tree: ast.Module, uses: Uses, rewritten: Sequence[Use], needed: Iterable[str], edits: Edits
) -> None:
    """Take the imports away that nothing uses any more; import what is `needed` and is not yet."""
    gone = {id(use.root) for use in rewritten}
    left = {name.id for name in uses.names if id(name) not in gone} | _exported(tree)
    for node in uses.imports:
        _without_unused(node, left, edits)
    missing = {_module(name) for name in needed if name} - _imported(tree)
    for name in sorted(missing, reverse=True):  # each one before those that are there
        edits.insert_line(_place(tree, uses), f"import {name}")


def _without_unused(node: ast.Import | ast.ImportFrom, left: set[str], edits: Edits) -> None:
    names = dict(bindings(node))
    keep = [a for a in node.names if (local := _local(a)) not in names or local in left]
    if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
        return
    if not keep:
        edits.remove(node)
    elif len(keep) < len(node.names):
        listed = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in keep)
        begin = "import" if isinstance(node, ast.Import) else f"from {node.module} import"
        edits.replace(node, f"{begin} {listed}")


def _local(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _exported(tree: ast.Module) -> set[str]:
    """What `__all__` names."""
    return {
        item.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
        for item in ast.walk(node.value)
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


def _module(name: str) -> str:
    """What to import for it: `import torch` gives most of PyTorch's modules."""
    apart = ("torch.utils.checkpoint", "torch.utils.dlpack")
    return "torch" if name.startswith("torch.") and name not in apart else name


def _imported(tree: ast.Module) -> set[str]:
    """The modules that the script's own statements import by their names."""
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
        if not alias.asname
    }


def _place(tree: ast.Module, uses: Uses) -> int:
    """Where new imports stand: before the first import of torch_xla, or behind the script's first imports.

    Imports of torch_xla in functions and conditions do not count.
    """
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    for node in body:
        if node in uses.imports:
            return node.lineno
    first_ones = itertools.takewhile(lambda n: isinstance(n, (ast.Import, ast.ImportFrom)), body)
    before = [*tree.body[: len(tree.body) - len(body)], *first_ones]
    return (before[-1].end_lineno or 0) + 1 if before else 1
