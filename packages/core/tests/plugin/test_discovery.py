"""Plugins are found by their entry points; what cannot be loaded is reported and left out."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_pjrt.errors import SettingError
from torch_pjrt.plugin.discovery import Found, Origin, discover

Install = Callable[..., None]


@pytest.fixture
def install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Install:
    """Lay a distribution on the path as pip would: its metadata, its entry point, its module."""
    monkeypatch.delenv("TORCH_PJRT_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    prefix = f"found_{abs(hash(request.node.name))}"  # modules of another test are imported already

    def lay(name: str, source: str = "", *, distribution: str = "", value: str = "") -> None:
        distribution = distribution or f"{name}-dist"
        module = f"{prefix}_{distribution.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        entry = f"{module}{value}"
        (info / "entry_points.txt").write_text(f"[torch_pjrt]\n{name} = {entry}\n")

    return lay


def why(found: Found, name: str) -> str:
    [broken] = [b for b in found.broken if b.name == name]
    return broken.why


def test_module_is_loaded_and_its_origin_known(install: Install) -> None:
    install("mine", "x = 3")

    found = discover()

    assert found.modules["mine"].x == 3
    assert found.origins["mine"] == Origin("mine-dist 1.0", found.modules["mine"].__name__)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module"),
        ("raise ValueError('not today')", "ValueError: not today"),
        ("def (", "SyntaxError: "),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
    ],
    ids=["imports-what-is-missing", "raises", "syntax", "exits"],
)
def test_plugin_that_fails_to_import_is_named_and_the_others_load(
    install: Install, source: str, reason: str
) -> None:
    install("bad", source)
    install("good")

    with pytest.warns(UserWarning, match="plugin `bad` failed and is disabled"):
        found = discover()

    assert "good" in found.modules
    assert "bad" not in found.modules
    assert why(found, "bad").startswith(reason)


def test_entry_point_that_names_no_module_is_refused(install: Install) -> None:
    install("bad", "class Plugin: pass", value=":Plugin")

    with pytest.warns(UserWarning, match=r"does not name a module\.\n  saw: `.*:Plugin`, a type"):
        assert "bad" not in discover().modules


def test_two_plugins_of_one_name_are_both_disabled_and_both_named(install: Install) -> None:
    install("same", distribution="first-dist")
    install("same", distribution="second-dist")

    with pytest.warns(UserWarning, match="`same`.*Two plugins have this name"):
        found = discover()

    assert "same" not in found.modules
    assert "first-dist 1.0" in why(found, "same")
    assert "second-dist 1.0" in why(found, "same")


def test_name_of_the_core_is_refused(install: Install) -> None:
    install("core")

    with pytest.warns(UserWarning, match="`core`.*taken by torch-pjrt itself"):
        assert "core" not in discover(reserved={"core"}).modules


def test_folder_that_is_on_the_path_twice_is_no_second_plugin(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mine")
    monkeypatch.syspath_prepend(f"{tmp_path}/.")

    assert "mine" in discover().modules


@pytest.mark.parametrize(
    ("setting", "loaded"),
    [
        ("", {"a", "b"}),
        (" , ", {"a", "b"}),
        ("a", {"a"}),
        (" b , a ", {"a", "b"}),
        ("-a", {"b"}),
        ("-a, -b", set()),
        ("-unheard-of", {"a", "b"}),
        ("unheard-of", set()),
    ],
)
def test_variable_allows_or_forbids_by_name(
    install: Install, monkeypatch: pytest.MonkeyPatch, setting: str, loaded: set[str]
) -> None:
    install("a")
    install("b")
    monkeypatch.setenv("TORCH_PJRT_PLUGINS", setting)

    found = discover()

    assert {"a", "b"} & set(found.modules) == loaded
    assert {"a", "b"} & set(found.forbidden) == {"a", "b"} - loaded


def test_forbidden_plugin_is_not_imported(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("bad", "raise ValueError('imported')")
    monkeypatch.setenv("TORCH_PJRT_PLUGINS", "-bad")

    found = discover()  # a warning would fail the test

    assert [b for b in found.broken if b.name == "bad"] == []


@pytest.mark.parametrize("setting", ["a,-b", "-", "a,-"])
def test_variable_that_cannot_be_read_is_an_error(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("TORCH_PJRT_PLUGINS", setting)

    with pytest.raises(
        SettingError, match=f"TORCH_PJRT_PLUGINS cannot be read.\n  saw: `{setting}`"
    ):
        discover()
