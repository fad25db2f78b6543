"""All packages have one version and ask for each other's, can be built, and carry their types."""

from __future__ import annotations

import re
import shutil
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import release

ROOT = release.ROOT
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def project(package: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def requirements(package: str) -> list[str]:
    extras = project(package).get("optional-dependencies", {})
    return project(package)["dependencies"] + [r for group in extras.values() for r in group]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The files that hold a version, where a test may write to them."""
    for place in release.PLACES:
        for path in ROOT.glob(place.files):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    shutil.copy(ROOT / "CHANGELOG.md", tmp_path)
    return tmp_path


def test_all_places_name_one_version() -> None:
    assert [len(place.found(ROOT)) for place in release.PLACES[:2]] == [1, len(PACKAGES)]
    assert release.differing(release.current()) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_siblings_are_asked_for_in_the_same_version(package: str) -> None:
    names = {project(p)["name"] for p in PACKAGES}

    siblings = [r for r in requirements(package) if r.startswith("torch-pjrt")]

    for requirement in siblings:
        matched = re.fullmatch(r"([a-z-]+)(\[\w+\])?==(.+)", requirement)
        assert matched is not None, requirement
        assert matched[1] in names
        assert matched[3] == release.current()


def test_packages_ask_for_the_same_pytorch_and_jax() -> None:
    for name in ("torch", "jax", "jaxlib"):
        asked = {r for p in PACKAGES for r in requirements(p) if re.match(rf"{name}\b[>=<]", r)}
        assert len(asked) == 1, asked


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_can_be_built_and_carry_licence_and_types(package: str, tmp_path: Path) -> None:
    root = ROOT / "packages" / package

    (wheel,) = WheelBuilder(str(root)).build(directory=str(tmp_path))
    (source,) = SdistBuilder(str(root)).build(directory=str(tmp_path))

    names = zipfile.ZipFile(wheel).namelist()
    metadata = next(n for n in names if n.endswith(".dist-info/METADATA"))
    fields = Parser().parsestr(zipfile.ZipFile(wheel).read(metadata).decode())
    assert fields["Version"] == release.current()
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["Keywords"] and fields["Summary"] and fields.get_payload()
    assert any(n.endswith("licenses/LICENSE") for n in names)
    modules = {n.split("/")[0] for n in names if n.endswith(".py")}
    assert sorted(n for n in names if n.endswith("py.typed")) == [f"{m}/py.typed" for m in modules]
    assert modules or package == "torch-pjrt"
    with tarfile.open(source) as archive:
        assert any(n.endswith("/pyproject.toml") for n in archive.getnames())


def test_a_new_version_is_written_everywhere_at_once(copied: Path) -> None:
    release.set_version("7.8.9rc1", copied)

    assert release.current(copied) == "7.8.9rc1"
    assert release.differing("7.8.9rc1", copied) == []
    assert "7.8.9rc1" in (copied / "packages/torch-pjrt/pyproject.toml").read_text()
    assert "0.1.0" not in (copied / "packages/torch-pjrt/pyproject.toml").read_text()
    assert release.notes("7.8.9rc1", copied).startswith("### ")
    assert release.notes("Unreleased", copied) == ""
    release.check("v7.8.9rc1", copied)


def test_a_tag_of_another_version_is_refused(copied: Path) -> None:
    release.set_version("7.8.9", copied)
    pyproject = copied / "packages/dynamo/pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('version = "7.8.9"', 'version = "7.8.8"'))

    with pytest.raises(SystemExit, match=r"dynamo/pyproject.toml has 7\.8\.8, not 7\.8\.9"):
        release.check("v7.8.9", copied)
    with pytest.raises(SystemExit, match=r"CHANGELOG\.md says nothing of 8\.0\.0"):
        release.check("v8.0.0", copied)
