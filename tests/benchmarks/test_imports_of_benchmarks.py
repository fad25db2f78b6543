"""What benchmarks and examples import of ours is there: nothing else runs most of them."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path.relative_to(ROOT)
    for folder in ("benchmarks", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if "torch_pjrt" in path.read_text()
)


def imported(script: Path) -> list[tuple[str, str | None]]:
    """Modules of ours that the script imports, and names of them."""
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse((ROOT / script).read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [(node.module, alias.name) for alias in node.names]
    return [(module, name) for module, name in found if module.startswith("torch_pjrt")]


def is_there(module: str, name: str | None) -> bool:
    of = importlib.import_module(module)
    if name is None or hasattr(of, name):
        return True
    return hasattr(of, "__path__") and find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_what_it_imports_of_ours_is_there(script: Path) -> None:
    assert [each for each in imported(script) if not is_there(*each)] == []


def test_many_scripts_import_many_names() -> None:
    assert len(SCRIPTS) > 40
    assert sum(len(imported(script)) for script in SCRIPTS) > 150
