"""Examples in the docstrings of public names run, and which names have none is a list that only shrinks.

An example that runs is written as Python's prompt shows it, with what it prints. It has the names of its
module and of `torch_pjrt.plugin`, besides `torch`, `torch_pjrt`, `jax`, `jnp` and `np`. Code without prompts
does not run here: it needs what a test cannot have, or a test of its own has it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import inspect
import io
import re
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

MODULES = ("torch_pjrt", "torch_pjrt.plugin", "torch_pjrt.plugin.rules", "torch_pjrt.extend")
CHECKED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# `torch_pjrt.extend.padding` is unstable, and none of its names has an example.
WITHOUT_EXAMPLE = {
    "torch_pjrt": "__version__ autoload",
    "torch_pjrt.plugin": """
        Draw GraphOp LoopOp Lowering Number NumberSlot Option Options Processes Ref Signature Slot
        Stage compile_only_chips gpu_options impl platforms_of_plugins
        """,
    "torch_pjrt.plugin.rules": """
        Attention AttentionBackward Convolution Groups Promote attention attention_backward
        convolution convolution_backward convolution_backward_overrideable grouped_mm key_of
        over_rows seed_of
        """,
    "torch_pjrt.extend": """
        Annotation ArrivingParts Joint JointAnswer JointOp Line Output PRECISIONS Partitioner
        PartsLater Program ProgramHooks RecordedStep Refusal Uploaded call_pinned choose_run
        computed_again create_empty_tensor deferred_checks deferred_checks_of each_collective
        joined_run keep_dynamo_out note_lines number_key padding placed precision_in_force
        run_pending set_partitioner state target_chips traced upload_parts
        with_precision
        """,
}


def _docstring(x: Any) -> str:
    """Its own; of an object that is there once, that of its class."""
    own = isinstance(x, type) or inspect.isroutine(inspect.unwrap(x))
    return inspect.getdoc(x if own else type(x)) or ""


DOCSTRINGS = {
    (module, name): _docstring(getattr(import_module(module), name))
    for module in MODULES
    for name in import_module(module).__all__
}
RUNNING = [where for where, text in DOCSTRINGS.items() if ">>> " in text]


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What an example sets ends with it; what it writes goes to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    config = torch_pjrt.config
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    yield
    for field, value in settings.items():
        setattr(config, field, value)


@pytest.mark.parametrize("module", MODULES)
def test_only_these_names_have_no_example(module: str) -> None:
    found = [
        name
        for (of, name), text in DOCSTRINGS.items()
        if of == module and ">>> " not in text and not re.search(r"^\n {4}\S", text, re.M)
    ]

    assert sorted(found) == sorted(WITHOUT_EXAMPLE[module].split())


@pytest.mark.parametrize(("module", "name"), RUNNING)
def test_example_prints_what_it_says(module: str, name: str) -> None:
    found = getattr(import_module(module), name)
    names = {"torch": torch, "torch_pjrt": torch_pjrt, "jax": jax, "jnp": jnp, "np": np}
    for of in ("torch_pjrt.plugin", module):
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
