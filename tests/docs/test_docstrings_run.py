"""Each public name of core has an example in its docstring, and all examples run.

An example is written as Python's prompt shows it, with what it prints. It has the names of its module, of
`torch_pjrt.plugin` and of `torch_pjrt.extend`, besides `torch`, `torch_pjrt`, `jax`, `jnp` and `np`. What has
no docstring of its own (a constant, a type, a function of PyTorch's) is in an example of its module.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import doctest
import inspect
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_pjrt
from torch_pjrt import config
from torch_pjrt.client import partition
from torch_pjrt.device import tracers
from torch_pjrt.diagnostics import sections
from torch_pjrt.observe.lines import stop_for
from torch_pjrt.plugin import processes

MODULES = (
    "torch_pjrt",
    "torch_pjrt.plugin",
    "torch_pjrt.plugin.rules",
    "torch_pjrt.extend",
    "torch_pjrt.extend.padding",
)
CHECKED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What examples add to, and nobody takes from.
LISTS: tuple[Any, ...] = (sections._sections.added, tracers._packages)


def _docstring(x: Any) -> str:
    """Its own; of an object that is there once, that of its class."""
    own = isinstance(x, type) or inspect.isroutine(inspect.unwrap(x))
    return inspect.getdoc(x if own else type(x)) or ""


def _examples(docstring: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(docstring)


DOCSTRINGS = {
    (module, name): _docstring(getattr(import_module(module), name))
    for module in MODULES
    for name in import_module(module).__all__
}
DOCSTRINGS |= {(module, ""): inspect.getdoc(import_module(module)) or "" for module in MODULES}
RUNNING = [where for where, text in DOCSTRINGS.items() if _examples(text)]


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example sets ends with it; what it writes goes to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    monkeypatch.setattr(partition.chosen, "partitioner", None)
    monkeypatch.setattr(processes._run, "chosen", None)
    lists = [list(found) for found in LISTS]
    yield
    for field, value in settings.items():
        setattr(config, field, value)
    for found, items in zip(LISTS, lists, strict=True):
        found[:] = items
    stop_for("my package")


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_is_in_an_example(module: str) -> None:
    of_module = [
        node
        for example in _examples(DOCSTRINGS[module, ""])
        for node in ast.walk(ast.parse(example.source))
    ]
    shown = {node.id for node in of_module if isinstance(node, ast.Name)}
    shown |= {node.attr for node in of_module if isinstance(node, ast.Attribute)}

    assert not [
        name
        for name in import_module(module).__all__
        if not _examples(DOCSTRINGS[module, name]) and name not in shown
    ]


@pytest.mark.parametrize(("module", "name"), RUNNING)
def test_example_prints_what_it_says(module: str, name: str) -> None:
    found = getattr(import_module(module), name) if name else import_module(module)
    names = {"torch": torch, "torch_pjrt": torch_pjrt, "jax": jax, "jnp": jnp, "np": np}
    for of in ("torch_pjrt.extend", "torch_pjrt.plugin", module):
        names |= {n: getattr(import_module(of), n) for n in import_module(of).__all__}
    names.setdefault(getattr(found, "__name__", name), found)
    example = doctest.DocTestParser().get_doctest(
        DOCSTRINGS[module, name], names, f"{module}.{name}", None, None
    )
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        result = doctest.DocTestRunner(optionflags=CHECKED).run(example)

    assert result.attempted
    assert not result.failed, printed.getvalue()
