"""What the documentation names is there: files, links, commands, settings. Its lines are short."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from doc_pages import GENERATED, PAGES, ROOT, blocks, lines, name, prose
from torch_pjrt.settings import Settings

N_COLUMNS = 100
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
API = ROOT / "docs" / "site" / "api.rst"
SETTINGS = ROOT / "docs" / "settings.md"
COMMANDS = [*PAGES, ROOT / ".ci" / "run", *sorted((ROOT / ".github").glob("**/*.yml"))]

# Files that pages name and that are not ours: they stand in examples, or a program writes them.
OF_EXAMPLES = {"train.py", "model.py", "my_plugin/plugin.py", "plugin.py", "picture.png"}
WRITTEN = re.compile(r"^(\d{4}\.|\*|perfetto_trace|torch_pjrt_acme/|pytorch/|path/|dist\b|build/)")

by_page = pytest.mark.parametrize("page", PAGES, ids=name)


@cache
def files() -> tuple[str, ...]:
    """All files of the tree and all folders with a slash, without those that are built."""
    skipped = {"build", "dist", "node_modules", "__pycache__"}
    paths = [
        p
        for p in ROOT.rglob("*")
        if not skipped & set(p.relative_to(ROOT).parts) and ".git" not in p.parts
    ]
    return tuple(f"/{p.relative_to(ROOT).as_posix()}{'/' if p.is_dir() else ''}" for p in paths)


def anchors(page: Path) -> set[str]:
    """Those that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`]*`", "", prose(page))
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", text) if not t.startswith("http")]


def named_files(page: Path) -> set[str]:
    """What stands in backticks and looks like a path or a file."""
    quoted = re.findall(r"`([^`\n]+)`", prose(page))
    return {
        q
        for q in quoted
        if re.fullmatch(r"[\w./*-]*(?:\.(?:py|md|toml|ini|json|yml|png|svg|cff)|\w/)", q)
    }


@by_page
def test_lines_are_short(page: Path) -> None:
    if page in GENERATED:
        return
    long = [
        line.number
        for line in lines(page)
        if len(line.text) > N_COLUMNS
        and not line.text.lstrip().startswith("|")  # a row of a table cannot be wrapped
        and (line.fence is None or line.fence.startswith("python"))
        and not line.text.startswith("    ")  # output
    ]

    assert long == []


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


@by_page
def test_files_that_are_named_are_there(page: Path) -> None:
    known = files()
    missing = [
        file
        for file in named_files(page)
        if file not in OF_EXAMPLES and not WRITTEN.match(file)
        if not any(path.endswith(f"/{file.removeprefix('./')}") for path in known)
    ]

    assert missing == []


def test_index_lists_all_pages() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    pages = {*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")} - {index}

    assert sorted(map(name, pages - listed)) == []


def test_index_lists_all_pages_of_results() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    results = sorted(path.name for path in (ROOT / "benchmarks" / "results").glob("*.md"))

    assert [page for page in results if f"(../benchmarks/results/{page})" not in index] == []


def test_api_has_all_public_modules() -> None:
    public = re.findall(
        r"^\| (.*?) \|", CONTRIBUTING.read_text().partition("## What is public")[2], re.M
    )
    modules = re.findall(r"`(torch_pjrt[\w.]*)`", " ".join(public))
    documented = re.findall(r"^\.\. automodule:: (\S+)$", API.read_text(), re.M)

    assert len(modules) >= 5
    # Helpers of tests say in `torch_pjrt.testing` itself what they are for.
    assert set(modules) - {"torch_pjrt.testing"} <= set(documented)


def test_hatch_commands_are_there() -> None:
    environments = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]
    known = {
        name if env == "default" else f"{env}:{name}"
        for env, table in environments.items()
        for name in table["scripts"]
    }
    known |= {
        f"{env}.{value}:{name}"
        for env, table in environments.items()
        for row in table.get("matrix", ())
        for values in row.values()
        for value in values
        for name in table["scripts"]
    }

    for page in COMMANDS:
        named = set(re.findall(r"hatch run ([a-z][\w:-]*(?:\.[a-z][\w:-]*)?)", page.read_text()))
        assert named <= known, (name(page), named - known)


def test_ci_runs_each_package_alone() -> None:
    matrix = tomllib.loads((ROOT / "hatch.toml").read_text())["envs"]["matrix"]["matrix"]
    run = (ROOT / ".ci" / "run").read_text()

    for package in matrix[0]["package"]:
        assert f'"hatch run matrix.{package}:run"' in run, package


def test_workflows_name_files_that_are_there() -> None:
    for page in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        for file in re.findall(r"(?:^|[ :])(\.ci/\w+|tools/[\w.]+)", page.read_text(), re.M):
            assert (ROOT / file).is_file(), file


def test_page_of_settings_has_all_variables() -> None:
    sources = "\n".join(p.read_text() for p in ROOT.glob("packages/*/src/**/*.py"))
    read = set(re.findall(r"TORCH_PJRT_[A-Z][A-Z_]*[A-Z]", sources))
    page = SETTINGS.read_text()
    rows = re.findall(r"^\| `(\w+)` \|", page, re.M)
    former = re.findall(r"\(was `(TORCH_PJRT_\w+)`\)", page)

    assert {v for v in rows if v.startswith("TORCH_PJRT")}.union(former) == read


def test_page_of_settings_has_all_fields_of_the_configuration() -> None:
    rows = re.findall(r"^\| `\w+` \| `(\w+)` \|", SETTINGS.read_text(), re.M)

    assert sorted(rows) == sorted(field.name for field in dataclasses.fields(Settings))


def test_fences_of_python_say_what_a_test_understands() -> None:
    infos = {b.info for page in PAGES for b in blocks(page) if b.info.startswith("python")}

    assert [i for i in infos if not re.fullmatch(r"python( not-run: .+| raises: \w+)?", i)] == []
