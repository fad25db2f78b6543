"""Words of our own for which the field has its own do not come back as names of code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))

# What a name or a part of one was -> the field's word.
FIELD = {
    "face": "TensorSpec",
    "faces": "TensorSpec",
    "roomy": "padded",
    "places": "positions, indices",
    "heir": "aliased output",
    "heirs": "aliased outputs",
    "giving": "donation",
    "aside": "uncached",
    "spots": "positions",
    "trial": "what it does",
    "chances": "what it does",
}


def parts(name: str) -> set[str]:
    """`HasPlaces`, `_has_places` -> has, places."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def defined(tree: ast.Module) -> Iterator[str]:
    """Functions, classes, parameters, and what is assigned to."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def test_names_have_the_words_of_the_field() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in {path.stem, *defined(ast.parse(path.read_text()))}
        if parts(name) & FIELD.keys()
    }

    assert SOURCES
    assert not found
