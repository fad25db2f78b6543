"""What `pyrightconfig.json` lists is there, with every package: pyright passes over the rest in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import release

CONFIG = json.loads((release.ROOT / "pyrightconfig.json").read_text())


@pytest.mark.parametrize("kind", ["include", "extraPaths"])
def test_each_entry_is_a_folder_or_file_by_its_full_name(kind: str) -> None:
    wild = [entry for entry in CONFIG[kind] if set(entry) & set("*?[")]
    missing = [entry for entry in CONFIG[kind] if not (release.ROOT / entry).exists()]

    assert not wild, "pyright finds nothing by such a pattern, and does not say so"
    assert not missing


def test_the_sources_of_every_package_are_included() -> None:
    sources = {path.relative_to(release.ROOT) for path in release.ROOT.glob("packages/*/src")}

    assert sources, "the packages are elsewhere"
    assert sources <= set(map(Path, CONFIG["include"]))
    assert not CONFIG.get("exclude") and not CONFIG.get("ignore"), "nothing is left out again"
