"""Where a script uses torch_xla: what its imports bind, and each expression that names something of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "torch_xla"


@dataclass(eq=False)
class Use:
    """One expression that names something of torch_xla.

    node  the name or the chain of attributes. name: its full name, `torch_xla.core.xla_model.mark_step`.
    call  the call of which it is the function; None where it is only named.
    """

    node: ast.expr
    name: str
    root: ast.Name
    call: ast.Call | None = None


@dataclass(eq=False)
class Uses(ast.NodeVisitor):
    """All imports and uses of torch_xla in a tree. A use within the arguments of another one comes first."""

    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    found: list[Use] = field(default_factory=list)
    names: list[ast.Name] = field(default_factory=list)
    bound: dict[str, str] = field(default_factory=dict)
    parameters: list[set[str]] = field(default_factory=list)

    @classmethod
    def of(cls, tree: ast.AST) -> Uses:
        """Those of `tree`. A name means the same all over a file, whichever function has imported it, but for
        functions of which it is a parameter."""
        uses = cls()
        for node in ast.walk(tree):
            for local, name in bindings(node):
                uses.bound[local] = name
            if isinstance(node, (ast.Import, ast.ImportFrom)) and is_of_package(node):
                uses.imports.append(node)
        uses.visit(tree)
        return uses

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments first, then the function."""
        for part in (*node.args, *node.keywords):
            self.visit(part)
        self._see(node.func, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """A chain that is not called."""
        self._see(node, None)

    def visit_Name(self, node: ast.Name) -> None:
        """A name that is not called."""
        self._see(node, None)

    def visit_FunctionDef(self, node: Any) -> None:
        """What a parameter's name means is not what was imported."""
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        self.parameters.append({argument.arg for argument in every if argument is not None})
        self.generic_visit(node)
        self.parameters.pop()

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def _see(self, node: ast.expr, call: ast.Call | None) -> None:
        parts: list[str] = []
        root: ast.AST = node
        while isinstance(root, ast.Attribute):
            parts.append(root.attr)
            root = root.value
        if not isinstance(root, ast.Name):
            self.visit(root)
            return
        if any(root.id in names for names in self.parameters):
            return
        self.names.append(root)
        if root.id in self.bound and isinstance(root.ctx, ast.Load):
            full = ".".join((self.bound[root.id], *reversed(parts)))
            self.found.append(Use(node, full, root, call))


def is_of_package(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether something of torch_xla is imported."""
    return any(True for _ in bindings(node)) or (
        isinstance(node, ast.ImportFrom) and _within(node.module) and not node.level
    )


def bindings(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Of an import of torch_xla: each name that it binds, and what of torch_xla that is."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _within(alias.name):
                yield (alias.asname, alias.name) if alias.asname else (PACKAGE, PACKAGE)
    elif isinstance(node, ast.ImportFrom) and _within(node.module) and not node.level:
        for alias in node.names:
            if alias.name != "*":
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _within(module: str | None) -> bool:
    return module is not None and (module == PACKAGE or module.startswith(PACKAGE + "."))
