"""`extend.after_import`: who waits for the import of a module is called at its end, once."""

from __future__ import annotations

import importlib.util
import runpy
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from torch_pjrt import extend


def test_several_may_wait_for_the_import_of_one_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "imported_late.py").write_text("loaded = 1")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[tuple[str, int]] = []
    for name in ("first", "second", "third"):
        extend.after_import(
            "imported_late", lambda module, n=name: called.append((n, module.loaded))
        )

    __import__("imported_late")
    extend.after_import("imported_late", lambda module: called.append(("late", module.loaded)))

    assert called == [(name, 1) for name in ("first", "second", "third", "late")]


def test_who_asks_for_a_module_that_is_being_imported_is_called_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    called: list[int] = []
    monkeypatch.setattr(extend, "found_in_the_middle", called, raising=False)
    (tmp_path / "imported_now.py").write_text(
        "from torch_pjrt import extend\n"
        "def then(module): extend.found_in_the_middle.append(module.last)\n"
        "extend.after_import('imported_now', then)\n"
        "extend.after_import('imported_now', lambda module: then(module))\n"
        "if extend.found_in_the_middle: raise AssertionError('too early')\n"
        "last = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    module = __import__("imported_now")

    assert called == [3, 3]
    assert type(module.__spec__) is ModuleSpec


def test_an_import_that_fails_is_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    called: list[object] = []
    monkeypatch.setattr(extend, "found_in_the_middle", called, raising=False)
    file = tmp_path / "imported_badly.py"
    ask = (
        "from torch_pjrt import extend\n"
        "extend.after_import('imported_badly', extend.found_in_the_middle.append)\n"
    )
    file.write_text(ask + "raise ValueError('the first time')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="the first time"):
        __import__("imported_badly")
    file.write_text("works = True  # and is longer than before, so that Python reads it anew" * 9)

    module = __import__("imported_badly")

    assert called == [module]


def test_a_module_that_is_waited_for_runs_by_python_m(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "run_by_name.py").write_text("made = __name__\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[object] = []
    extend.after_import("run_by_name", called.append)

    names = runpy.run_module("run_by_name", run_name="__main__")

    assert names["made"] == "__main__"
    assert called == []  # nothing has been imported


def test_who_asks_twice_for_an_import_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "imported_once.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[object] = []
    then = called.append
    extend.after_import("imported_once", then)
    extend.after_import("imported_once", then)

    module = __import__("imported_once")
    extend.after_import("imported_once", then)

    assert called == [module]


@pytest.mark.parametrize("way", ["asked for", "asked for twice", "run by name", "failed"])
def test_what_comes_before_an_import_does_not_use_up_what_waits_for_it(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = f"imported_after_being_{way.replace(' ', '_')}"
    (tmp_path / f"{name}.py").write_text("import importlib\nimportlib.ready()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib, "ready", lambda: None, raising=False)
    called: list[tuple[int, object]] = []
    for n in range(2):
        extend.after_import(name, lambda module, n=n: called.append((n, module)))

    if way == "failed":
        monkeypatch.delattr(importlib, "ready")
        with pytest.raises(AttributeError):
            __import__(name)
        monkeypatch.setattr(importlib, "ready", lambda: None, raising=False)
    elif way == "run by name":
        runpy.run_module(name, run_name="__main__")
    else:
        for _ in way.split():
            assert importlib.util.find_spec(name) is not None
    assert not called
    module = __import__(name)
    importlib.reload(module)

    assert called == [(0, module), (1, module)]
