"""The Python blocks of the documentation run, in the order in which a reader meets them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch

import torch_pjrt
from doc_pages import PAGES, Block, blocks, name
from torch_pjrt.session import session
from torch_pjrt.testing.quick import quick_options

WITH_CODE = [page for page in PAGES if any(b.info.startswith("python") for b in blocks(page))]
# Blocks are code of a module: Dynamo imports it, to look up globals.
MODULE = "__docs__"
COUNTED = ("operators", "program runs", "compiled", "syncs", "fallbacks", "tokens", "of them")
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page sets ends with it; what it writes goes to a folder of its own."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    # Processes that a page starts get its functions as those of a script: they cannot import this module.
    cloudpickle.register_pickle_by_value(module)
    config = torch_pjrt.config
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    precision = torch.get_float32_matmul_precision()
    torch.manual_seed(0)
    session.forget()  # a page's process has counted nothing
    config.compile_options = {**config.compile_options, **quick_options()}
    yield
    cloudpickle.unregister_pickle_by_value(module)
    for field, value in settings.items():
        setattr(config, field, value)
    torch.set_float32_matmul_precision(precision)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def run(block: Block, names: dict[str, Any]) -> str:
    """What the block prints. It stands in a file, for tracebacks, reports and `torch.compile`."""
    file = Path("train.py").resolve()
    file.write_text(block.text)
    linecache.checkcache(str(file))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, str(file), "exec"), names)
    return printed.getvalue()


def without_numbers(text: str) -> list[str]:
    """The lines, with a sign for each number, and rules of tables and spaces of any length."""
    text = re.sub(r"[─-]{3,}", "---", re.sub(NUMBER, "0", text))
    return [re.sub(r"\s+", " ", line).strip() for line in text.strip().splitlines()]


def counts_in(text: str) -> list[tuple[str, str]]:
    """What is counted, and how often: the same in each run, as times and values are not."""
    return re.findall(rf"(?<![.\d])(\d[\d,]*) ({'|'.join(COUNTED)})\b", text)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_page_runs(page: Path) -> None:
    names = vars(sys.modules[MODULE])
    printed = ""
    for block in blocks(page):
        _, _, more = block.info.partition(" ")
        if block.info == "text output":
            assert without_numbers(printed) == without_numbers(block.text), block.number
            assert counts_in(printed) == counts_in(block.text), block.number
        elif not block.info.startswith("python") or more.startswith("not-run:"):
            continue
        elif more.startswith("raises:"):
            with pytest.raises(Exception) as raised:
                run(block, names)
            assert more.removeprefix("raises:").strip() in [
                t.__name__ for t in type(raised.value).__mro__
            ]
        else:
            printed = run(block, names)


def test_blocks_that_do_not_run_are_few() -> None:
    python = [b for page in WITH_CODE for b in blocks(page) if b.info.startswith("python")]
    not_run = [b for b in python if "not-run:" in b.info]
    elsewhere = ("the tests of the package run it", "which test_guide_for_vendors.py installs")
    silent = [b for b in not_run if not any(reason in b.info for reason in elsewhere)]

    assert len(silent) <= 13, [b.info for b in silent]
    assert len(python) - len(not_run) >= 30
