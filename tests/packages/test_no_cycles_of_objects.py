"""Nothing that we write leaves a cycle of objects, which would hold tensors until Python's collector runs.

Two ways of writing make one at each call: raising an error from a local name (the error's traceback holds
the frame, the frame the error), and a local function that calls itself (it holds the cell that holds it,
and all else that it closes over).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.name for p in ROOT.glob("packages/*") if (p / "src").is_dir())

Function = ast.FunctionDef | ast.AsyncFunctionDef


def names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def raised_from_locals(function: Function) -> Iterator[int]:
    """Lines that raise an error which a variable of the frame goes on holding.

    Python itself deletes the name of `except ... as error` at the end of its block.
    """
    held = names(function, ast.Store) | {
        a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)
    }
    held -= names(function, ast.Del)
    for found in ast.walk(function):
        if isinstance(found, ast.Raise) and isinstance(found.exc, (ast.Name, ast.Attribute)):
            of = found.exc
            while isinstance(of, ast.Attribute):
                of = of.value
            if isinstance(of, ast.Name) and of.id in held:
                yield found.lineno


def functions_that_hold_themselves(function: Function) -> Iterator[int]:
    """Lines of local functions that refer to themselves, or to one that refers to them."""
    local = {f.name: f for f in ast.walk(function) if isinstance(f, Function) and f is not function}
    refers = {name: names(f, ast.Load) & local.keys() for name, f in local.items()}
    for name, f in local.items():
        reached: set[str] = set()
        waiting = list(refers[name])
        while waiting:
            if (other := waiting.pop()) not in reached:
                reached.add(other)
                waiting += refers[other]
        if name in reached:
            yield f.lineno


def found_in(text: str) -> set[tuple[str, int]]:
    functions = [f for f in ast.walk(ast.parse(text)) if isinstance(f, Function)]
    return {("raises a local", line) for f in functions for line in raised_from_locals(f)} | {
        ("holds itself", line) for f in functions for line in functions_that_hold_themselves(f)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_package_leaves_no_cycles(package: str) -> None:
    files = list((ROOT / "packages" / package / "src").rglob("*.py"))
    assert files or package == "torch-pjrt"

    found = {f"{f.name}:{line} {what}" for f in files for what, line in found_in(f.read_text())}

    assert not found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n e = make()\n raise e", {("raises a local", 3)}),
        ("def f(e):\n raise e from None", {("raises a local", 2)}),
        ("def f(self):\n raise self.error", {("raises a local", 2)}),
        ("def f():\n try: g()\n except E as e:\n  raise e", set()),
        ("def f(e):\n try:\n  raise e\n finally:\n  del e", set()),
        ("def f():\n def g(x): return g(x)\n return g", {("holds itself", 2)}),
        (
            "def f():\n def g(x): return h(x)\n def h(x): return g(x)",
            {("holds itself", 2), ("holds itself", 3)},
        ),
        ("def f():\n def g(x): return h(x)\n def h(x): return x", set()),
    ],
)
def test_what_is_found(text: str, expected: set[tuple[str, int]]) -> None:
    assert found_in(text) == expected
