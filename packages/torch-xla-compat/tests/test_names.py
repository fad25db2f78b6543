"""Each name that the page `from-torch-xla` lists is there, or raises with what to use instead."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import warm
from torch_pjrt.errors import UnsupportedError

PAGE = Path(__file__).parents[3] / "docs" / "from-torch-xla.md"
# Changed on purpose only.
N_THERE, N_ABSENT = 240, 42


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each module the names that are there, and those that raise."""
    for line in PAGE.read_text().splitlines():
        if found := re.match(r"\| `(torch_xla[\w.]*)` \| (.*) \| (.*)\|$", line):
            yield found[1], found[2].strip(" `").split(), found[3].strip(" `").split()


THERE = [(module, name) for module, names, _ in rows() for name in names]
ABSENT = [(module, name) for module, _, names in rows() for name in names]


def test_the_page_lists_many() -> None:
    assert (len(THERE), len(ABSENT)) == (N_THERE, N_ABSENT)


@pytest.mark.parametrize(("module", "name"), THERE)
def test_a_name_is_there_and_documented(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)

    if not isinstance(found, str):
        assert found.__doc__


@pytest.mark.parametrize(("module", "name"), ABSENT)
def test_a_name_without_meaning_says_what_to_use(module: str, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"`{module}\.{name}` does not exist.*\n.*hint: "):
        getattr(importlib.import_module(module), name)


def test_importing_a_name_without_meaning_says_so_too() -> None:
    with pytest.raises(UnsupportedError, match="check_view_sharing"):
        exec("from torch_xla.core.xla_model import check_view_sharing")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"torch_xla\.core\.xla_model.*no_such_name"):
        _ = importlib.import_module("torch_xla.core.xla_model").no_such_name


@pytest.mark.parametrize("module", sorted({module for module, _, _ in rows()}))
def test_the_page_lists_all_public_names(module: str) -> None:
    listed = {name for of, name in THERE if of == module}
    loaded = importlib.import_module(module)
    own = {
        name
        for name, value in vars(loaded).items()
        if getattr(value, "__module__", None) == module and not name.startswith("_")
    }
    public = own | set(getattr(loaded, "__all__", ()))

    modules = {name for name in public if isinstance(getattr(loaded, name), ModuleType)}
    assert public - listed - modules - {"__version__"} == set()


MODULES = sorted({module for module, _, _ in rows()} - {"torch_xla"})
SCRIPT = """
import sys
import torch_xla
for name in sys.argv[1:]:
    found = torch_xla
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    print(found.__name__)
"""


def test_modules_are_attributes_though_nobody_imports_them() -> None:
    done = warm.run(["-c", SCRIPT, *MODULES], os.environ)

    assert done.stdout.split() == MODULES, done.stderr


def test_a_module_that_is_not_there_is_an_attribute_error() -> None:
    for package in ("torch_xla", "torch_xla.core", "torch_xla.experimental", "torch_xla.runtime"):
        assert not hasattr(importlib.import_module(package), "no_such_module")
