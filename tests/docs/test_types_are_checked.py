"""Pyright looks at every Python file, tests too; what it leaves out there is said in `CONTRIBUTING.md`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import release

CONFIG = json.loads((release.ROOT / "pyrightconfig.json").read_text())
INCLUDED = [release.ROOT / entry for entry in CONFIG["include"]]


@pytest.mark.parametrize("kind", ["include", "extraPaths"])
def test_each_entry_is_a_folder_or_file_by_its_full_name(kind: str) -> None:
    wild = [entry for entry in CONFIG[kind] if set(entry) & set("*?[")]
    missing = [entry for entry in CONFIG[kind] if not (release.ROOT / entry).exists()]

    assert not wild, "pyright finds nothing by such a pattern, and does not say so"
    assert not missing


@pytest.mark.parametrize("pattern", ["packages/*/src", "packages/*/tests", "tests/*", "*/"])
def test_every_folder_with_python_files_is_included(pattern: str) -> None:
    folders = [path for path in release.ROOT.glob(pattern) if path.is_dir() and _is_ours(path)]

    assert folders, "they are elsewhere"
    assert not [path for path in folders if not _is_included(path)]
    assert not CONFIG.get("exclude") and not CONFIG.get("ignore"), "nothing is left out again"


def test_rules_are_left_out_in_tests_alone_and_said_where_contributors_read() -> None:
    said = (release.ROOT / "CONTRIBUTING.md").read_text()
    environments = CONFIG["executionEnvironments"]
    left_out = {name for one in environments for name, value in one.items() if value is False}
    tests = {release.ROOT / "tests", *release.ROOT.glob("packages/*/tests")}

    examples = {"root": "examples", "reportMissingImports": False}

    assert {release.ROOT / one["root"] for one in environments if one != examples} == tests
    assert all(f"`{rule}`" in said for rule in left_out)
    assert not [name for name, value in CONFIG.items() if value is False]


def _is_ours(folder: Path) -> bool:
    """Whether it has Python files, and is neither a cache nor what is built."""
    hidden = folder.name.startswith((".", "__"))
    return not hidden and folder.name not in ("build", "dist") and any(folder.rglob("*.py"))


def _is_included(path: Path) -> bool:
    return any(path.is_relative_to(entry) for entry in INCLUDED)
