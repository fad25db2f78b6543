"""Our docstrings as reStructuredText: code blocks, lists in columns, names in backticks.

in                                      out
    an indented paragraph                   a code block
name   what it is, in columns               a definition list
├── a line of a drawing                     a block of text as it stands
`name`                                      ``name``
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COLUMNS = re.compile(r"^(?P<name>[\w`][\w`.,* ()]{0,30}?) {2,}(?P<text>\S.*)$")
_DRAWING = re.compile(r"[├└│]")


def to_rst(lines: Sequence[str]) -> list[str]:
    """The lines of a docstring whose common indentation is gone."""
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        out += [*_converted(paragraph), ""]
    return out


def _paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Runs of lines without an empty one; indented ones that follow each other are one."""
    paragraphs: list[list[str]] = []
    fresh = True
    for line in lines:
        if not line.strip():
            fresh = True
        elif not fresh:
            paragraphs[-1].append(line)
        elif paragraphs and _is_code(paragraphs[-1]) and line.startswith("    "):
            paragraphs[-1] += ["", line]
            fresh = False
        else:
            paragraphs.append([line])
            fresh = False
    return paragraphs


def _is_code(paragraph: Sequence[str]) -> bool:
    return all(not line or line.startswith("    ") for line in paragraph)


def _converted(paragraph: Sequence[str]) -> list[str]:
    if any(_DRAWING.search(line) for line in paragraph):
        return [".. code-block:: text", "", *(f"    {line}" for line in paragraph)]
    rows = [_COLUMNS.match(line.strip()) for line in paragraph]
    if _is_code(paragraph) and not (rows[0] and "#" not in paragraph[0] and len(paragraph) > 4):
        return [".. code-block:: python", "", *paragraph]
    if rows[0]:
        return _definitions([line.strip() for line in paragraph])
    return [_inline(line) for line in paragraph]


def _definitions(lines: Sequence[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        if found := _COLUMNS.match(line):
            names = found["name"].replace("`", "")
            out += [f"``{names}``", f"    {_inline(found['text'])}"]
        else:
            out.append(f"    {_inline(line)}")
    return out


def _inline(text: str) -> str:
    """Names in double backticks, and what reStructuredText would take for markup escaped."""
    parts = re.split(r"(`+[^`]+`+)", text)
    return "".join(
        f"``{part.strip('`')}``" if i % 2 else re.sub(r"([*|])|(?<=\w)_(?=\W|$)", r"\\\g<0>", part)
        for i, part in enumerate(parts)
    )
