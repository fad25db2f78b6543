"""Our docstrings as reStructuredText: code blocks, lists in columns, names in backticks.

in                                      out
    an indented paragraph                   a code block
>>> what runs as an example             a code block
name   what it is, in columns               a definition list
├── a line of a drawing                     a block of text as it stands
`name`                                      ``name``
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COLUMNS = re.compile(r"^(?P<name>[\w`][\w`.,* ()]{0,70}?) {2,}(?P<text>[^\s#].*)$")
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
    texts = [line.strip() for line in paragraph]
    if paragraph[0].startswith(">>> "):
        return [".. code-block:: pycon", "", *(f"    {line}" for line in paragraph)]
    if _is_code(paragraph) and not any(map(_COLUMNS.match, texts)):
        return [".. code-block:: python", "", *paragraph]
    if _COLUMNS.match(texts[0]) or _is_code(paragraph):
        return _definitions(texts)
    return _inline("\n".join(paragraph))


def _definitions(lines: Sequence[str]) -> list[str]:
    rows: list[tuple[str, list[str]]] = []
    for line in lines:
        if found := _COLUMNS.match(line):
            rows.append((found["name"].replace("`", ""), [found["text"]]))
        elif rows:
            rows[-1][1].append(line)
        else:
            rows.append((line, []))  # names alone, which say what they are
    out: list[str] = []
    for name, text in rows:
        indented = [f"    {line}" for line in _inline("\n".join(text))] if text else []
        out += [f"``{name}``", *indented] if text else [f"``{name}``", ""]
    return out


def _inline(text: str) -> list[str]:
    """Lines with names in double backticks; what else would be markup is escaped."""
    markup = r"[*|]|(?<=\w)_(?=\W|$)"
    out = ""
    for i, part in enumerate(re.split(r"(`+[^`]+`+)", text)):
        if i % 2:
            out += f"``{' '.join(part.strip('`').split())}``"
        else:
            follows = out and re.match(r"\w", part)  # as in "`Node`s": the name ends before
            out += ("\\ " if follows else "") + re.sub(markup, r"\\\g<0>", part)
    return out.split("\n")
