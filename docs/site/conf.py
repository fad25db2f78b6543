"""How Sphinx builds the site: the repository's own Markdown pages, and API pages from docstrings.

`hatch run docs` builds into `build/docs`. The source folder is the root of the repository, so that a
link works on the site as it does in the repository. The contents are the links of `docs/index.md`.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import docstrings  # noqa: E402

project = "torch-pjrt"
author = copyright = "The torch-pjrt authors"
release = tomllib.loads((ROOT / "packages/core/pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *("docs/*.md", "docs/site/*.rst", "benchmarks/README.md", "benchmarks/results/*.md"),
]
root_doc = "docs/index"
myst_heading_anchors = 4
default_role = "code"  # a name in single backticks, in docstrings too

autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
python_display_short_literal_types = True
add_module_names = False

html_theme = "furo"
html_title = f"torch-pjrt {release}"
html_copy_source = False
html_extra_path = ["start"]  # the folder's own page, which leads to `docs/index.html`

linkcheck_anchors_ignore_for_url = [r"https://ui\.perfetto\.dev"]

# Packages whose public names are loaded on first use: autodoc has to see them as attributes.
PUBLIC = re.findall(r"^\.\. automodule:: (\S+)$", (HERE / "api.rst").read_text(), re.M)


def contents(index: str) -> str:
    """A table of contents for each heading of the index, of the pages that stand under it."""
    trees = []
    for part in re.split(r"^## ", index, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        pages = [
            (ROOT / "docs" / link).resolve().relative_to(ROOT).with_suffix("")
            for link in re.findall(r"\]\(([^)#]+\.(?:md|rst))\)", body)
        ]
        lines = "\n".join(f"/{page.as_posix()}" for page in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{lines}\n```\n")
    return "\n".join(trees)


def add_contents(_app: Any, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += "\n" + contents(source[0])


def to_rst(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = docstrings.to_rst(lines)


def setup(app: Any) -> None:
    for name in PUBLIC:
        module = importlib.import_module(name)
        vars(module).update({n: getattr(module, n) for n in getattr(module, "__all__", ())})
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", to_rst)
