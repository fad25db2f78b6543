"""Which module of a package imports which, read from the sources: nothing is imported.

    python tools/import_graph.py packages/core/src/torch_pjrt

prints how large the cycles are, and which folders import each other. `packages/core/tests/test_layers.py`
holds core to its layers.

Every import is an edge, wherever it stands: at the top of a module, in a function, behind `TYPE_CHECKING`.
A text that is the full name of a module counts as an import of it (tables of what is loaded on first use).
So does the name of a sibling, in a module that imports by `f"{__package__}.{name}"`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# When an import runs: with the module, with a call of a function, never (it is for type checkers).
TOP, LAZY, TYPES = "top", "lazy", "types"


@dataclass(frozen=True, slots=True, order=True)
class Import:
    """One import: the names of the modules without the package's, where it stands, and when it runs."""

    importer: str
    imported: str
    when: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} -> {self.imported} ({self.when})"


@dataclass(frozen=True)
class Modules:
    """The modules of a package by name, "" for the package itself; `packages` are those that are folders."""

    files: Mapping[str, Path]
    packages: frozenset[str]
    imports: tuple[Import, ...]

    def folder_of(self, module: str) -> str:
        """The first folder that the module lies in; "" for modules beside the folders."""
        return module.partition(".")[0] if "." in module or module in self.packages else ""

    def edges(self, *when: str) -> set[tuple[str, str]]:
        """Who imports whom, by imports of these kinds."""
        return {(i.importer, i.imported) for i in self.imports if i.when in when}

    def folder_edges(self, *when: str) -> set[tuple[str, str]]:
        """Which folder imports from which other."""
        pairs = {(self.folder_of(a), self.folder_of(b)) for a, b in self.edges(*when)}
        return {(a, b) for a, b in pairs if a and b and a != b}


def read(package: Path) -> Modules:
    """The modules of the package in this folder, and all that they import of each other."""
    files: dict[str, Path] = {}
    packages = set()
    for path in sorted(package.rglob("*.py")):
        *folders, stem = path.relative_to(package).with_suffix("").parts
        name = ".".join(folders if stem == "__init__" else (*folders, stem))
        files[name] = path
        if stem == "__init__":
            packages.add(name)
    imports = [
        found
        for name, path in files.items()
        for found in _imports_of(package.name, name, ast.parse(path.read_text()), files, packages)
        if found.imported != name
    ]
    return Modules(files, frozenset(packages), tuple(sorted(set(imports))))


def _imports_of(
    root: str, module: str, tree: ast.Module, files: Mapping[str, Path], packages: set[str]
) -> Iterator[Import]:
    siblings = _prefix_of_siblings(module, tree, packages)
    for node, when in _with_time(tree, TOP):
        match node:
            case ast.Import():
                named = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(source), level=0):
                named = [
                    full if _inner(root, full := f"{source}.{alias.name}") in files else source
                    for alias in node.names
                ]
            case ast.ImportFrom():
                raise ValueError(f"{module}:{node.lineno}: a relative import")
            case ast.Constant(value=str(text)) if (
                text.startswith(f"{root}.") and text != f"{root}."
            ):
                named = [text]
            case ast.Constant(value=str(text)) if siblings is not None:
                named = [f"{root}.{siblings}{text}"]
            case _:
                continue
        is_text = isinstance(node, ast.Constant)
        for name in named:
            inner = _inner(root, name)
            if inner is not None and inner in files:
                yield Import(module, inner, LAZY if is_text else when, node.lineno)


def _inner(root: str, name: str) -> str | None:
    """The name without the package's; None for modules of others."""
    if name == root:
        return ""
    return name.removeprefix(f"{root}.") if name.startswith(f"{root}.") else None


def _prefix_of_siblings(module: str, tree: ast.Module, packages: set[str]) -> str | None:
    """What stands before the names of siblings, in a module that puts them together; None in others."""
    if not any(isinstance(n, ast.Name) and n.id == "__package__" for n in ast.walk(tree)):
        return None
    package = module if module in packages else module.rpartition(".")[0]
    return f"{package}." if package else ""


def _with_time(node: ast.AST, when: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inner = LAZY
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = TYPES
        else:
            inner = when
        yield child, inner
        yield from _with_time(child, inner)


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """What can reach itself, the largest first: Tarjan's strongly connected components of more than one."""
    following: dict[str, list[str]] = {}
    for a, b in sorted(edges):
        following.setdefault(a, []).append(b)
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in following.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == index[node]:
            start = stack.index(node)
            found.append(sorted(stack[start:]))
            del stack[start:]

    for node in following:
        if node not in index:
            visit(node)
    return sorted((c for c in found if len(c) > 1), key=len, reverse=True)


def mutual(edges: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs that import each other."""
    return sorted((a, b) for a, b in edges if a < b and (b, a) in edges)


def main() -> None:
    modules = read(Path(sys.argv[1]))
    print(f"{len(modules.files)} modules, {len(modules.edges(TOP, LAZY, TYPES))} edges")
    for what, when in (
        ("at the top", (TOP,)),
        ("with those in functions", (TOP, LAZY)),
        ("with those for types", (TOP, LAZY, TYPES)),
    ):
        sizes = [len(c) for c in cycles(modules.edges(*when))]
        pairs = mutual(modules.folder_edges(*when))
        print(f"{what}: cycles of modules: {sizes}; pairs of folders: {len(pairs)}")
        for a, b in pairs:
            print(f"    {a} and {b}")


if __name__ == "__main__":
    main()
