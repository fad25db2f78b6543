"""The pages of the documentation and what is in them: prose, fenced blocks, links.

A Python block of a page runs in a test (`test_docs_run.py`), after the blocks above it. The words
after `python` in its fence say what else is true of it:

    ```python                          runs
    ```python raises: IndexError       ends with that exception
    ```python not-run: <the reason>    does not run
    ```text output                     what the block above prints, up to the numbers in it

Code that a block needs and a reader does not stands above it, in a comment that begins with
`<!-- run first:`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PATTERNS = ("*.md", "docs/*.md", "packages/*/README.md", "benchmarks/*.md", ".github/*.md")
PAGES = sorted(path for pattern in _PATTERNS for path in ROOT.glob(pattern))
GENERATED = {ROOT / "docs" / "operators.md"}  # by `hatch run conformance --page`

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a page. `fence` is what its block's fence says, None outside of blocks."""

    number: int
    text: str
    fence: str | None


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or a comment with code to run first (`info` is `python` then)."""

    number: int  # of its first line
    info: str
    text: str


def lines(page: Path) -> Iterator[Line]:
    """All lines, those of fences not among them."""
    fence: str | None = None
    for number, text in enumerate(page.read_text().splitlines(), 1):
        if found := _FENCE.match(text):
            fence = found["info"] if fence is None else None
        else:
            yield Line(number, text, fence)


def prose(page: Path) -> str:
    """What is outside of blocks and comments."""
    text = "\n".join(line.text for line in lines(page) if line.fence is None)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def blocks(page: Path) -> list[Block]:
    """The fenced blocks and the comments with code, in their order."""
    text = page.read_text()
    fenced = r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```$"
    pattern = rf"{fenced}|<!-- run first:\n(?P<first>.*?)-->"
    return [
        Block(
            text.count("\n", 0, found.start()) + 2,
            "python" if found["first"] is not None else found["info"],
            textwrap.dedent(found["first"] if found["first"] is not None else found["body"]),
        )
        for found in re.finditer(pattern, text, re.M | re.S)
    ]
