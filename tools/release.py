"""The version of all packages: one command sets it everywhere, and one checks a release by its tag.

    python tools/release.py set 0.2.0      write it to every file that holds it, and date the changelog
    python tools/release.py check v0.2.0   fail unless every file holds it
    python tools/release.py notes v0.2.0   print the changelog's part of it
    python tools/release.py build dist     build a wheel and a source archive of each package

The version is `__version__` in core; each other place is a row of `PLACES`.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
CORE = "packages/core/src/torch_pjrt/__init__.py"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a version stands: the group `version` of each match of `pattern` in files like `files`."""

    files: str
    pattern: str

    def found(self, root: Path) -> list[tuple[Path, str]]:
        """Each file with each version that stands in it."""
        return [
            (path, match["version"])
            for path in sorted(root.glob(self.files))
            for match in re.finditer(self.pattern, path.read_text(), re.MULTILINE)
        ]

    def write(self, root: Path, version: str) -> None:
        def replaced(match: re.Match[str]) -> str:
            start, end = (i - match.start() for i in match.span("version"))
            return match[0][:start] + version + match[0][end:]

        for path in root.glob(self.files):
            text = path.read_text()
            path.write_text(re.sub(self.pattern, replaced, text, flags=re.MULTILINE))


PLACES = (
    Place(CORE, rf'^__version__ = "(?P<version>{VERSION})"$'),
    Place("packages/*/pyproject.toml", rf'^version = "(?P<version>{VERSION})"$'),
    # A package and its siblings are released together: each asks for exactly its own version.
    Place("packages/*/pyproject.toml", rf'"torch-pjrt[a-z-]*(?:\[\w+\])?==(?P<version>{VERSION})"'),
    Place("CITATION.cff", rf"^version: (?P<version>{VERSION})$"),
)


def current(root: Path = ROOT) -> str:
    """The version that core names."""
    return PLACES[0].found(root)[0][1]


def differing(version: str, root: Path = ROOT) -> list[str]:
    """One line for each place that names another version."""
    return [
        f"{path.relative_to(root)} has {found}, not {version}"
        for place in PLACES
        for path, found in place.found(root)
        if found != version
    ]


def notes(version: str, root: Path = ROOT) -> str:
    """What the changelog says of a version; empty where it says nothing."""
    text = (root / "CHANGELOG.md").read_text()
    part = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    return part[1].strip() if part else ""


def set_version(version: str, root: Path = ROOT) -> None:
    """Write the version to each place, and give it what the changelog has as unreleased."""
    today = datetime.date.today().isoformat()
    for place in PLACES:
        place.write(root, version)
    changelog = root / "CHANGELOG.md"
    heading = f"## [Unreleased]\n\n## [{version}] - {today}\n"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", heading, 1))
    citation = root / "CITATION.cff"
    citation.write_text(
        re.sub(r"^date-released: .*$", f"date-released: {today}", citation.read_text(), flags=re.M)
    )


def check(tag: str, root: Path = ROOT) -> None:
    """End with an error unless `tag` names the version of all packages, and the changelog has it."""
    version = tag.removeprefix("v")
    faults = differing(version, root)
    if not notes(version, root):
        faults.append(f"CHANGELOG.md says nothing of {version}")
    if faults:
        sys.exit("\n".join(faults))


def build(folder: str, root: Path = ROOT) -> None:
    """Have hatch build each package into `folder`."""
    target = Path(folder).resolve()
    for pyproject in sorted(root.glob("packages/*/pyproject.toml")):
        subprocess.run(["hatch", "build", str(target)], cwd=pyproject.parent, check=True)


def main() -> None:
    commands: dict[str, Callable[[str], None]] = {
        "set": set_version,
        "check": check,
        "notes": lambda tag: print(notes(tag.removeprefix("v"))),
        "build": build,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=commands)
    parser.add_argument("argument", help="a version, a tag or a folder")
    asked = parser.parse_args()
    if asked.command == "set" and not re.fullmatch(VERSION, asked.argument):
        parser.error(f"`{asked.argument}` is no version: write 1.2.3, 1.2.3a1, 1.2.3b1 or 1.2.3rc1")
    commands[asked.command](asked.argument)


if __name__ == "__main__":
    main()
