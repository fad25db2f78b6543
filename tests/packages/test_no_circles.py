"""Within each package no modules import each other in a circle, also where a function imports.

Core's modules have an order, which `packages/core/tests/test_layers.py` holds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import import_graph
from import_graph import LAZY, TOP

ROOT = Path(__file__).parents[2]
PACKAGES = {p.parent.name: p.parent for p in ROOT.glob("packages/*/src/*/__init__.py")}
del PACKAGES["torch_pjrt"]

# Folders that import each other, module by module without a circle, and why. They may only go.
KNOWN_FOLDERS = {
    # Who joins a run asks which cluster's launcher started it; a launched function's error is a run's.
    "torch_pjrt_spmd": [("distributed", "launching")],
}


@cache
def read(package: str) -> import_graph.Modules:
    return import_graph.read(PACKAGES[package])


def test_all_packages_are_here() -> None:
    assert {"torch_pjrt_cpu", "torch_pjrt_spmd", "torch_xla"} <= PACKAGES.keys()
    assert KNOWN_FOLDERS.keys() <= PACKAGES.keys()


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    assert not import_graph.cycles(read(package).edges(TOP, LAZY))


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_two_folders_import_each_other(package: str) -> None:
    assert import_graph.mutual(read(package).folder_edges(TOP, LAZY)) == KNOWN_FOLDERS.get(
        package, []
    )
