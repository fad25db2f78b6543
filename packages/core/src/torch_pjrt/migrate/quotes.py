"""Texts within f-strings, where before Python 3.12 the quotes of the f-string may not stand."""

from __future__ import annotations

import ast
import re

_BEGIN = re.compile(r"""(?:\s|\\\n|\#[^\n]*\n)*[rRfFuUbBtT]*(\'\'\'|\"\"\"|\'|\")""")


class Quotes:
    """Which f-strings of a tree a node is in, and how texts are quoted there."""

    def __init__(self, tree: ast.AST) -> None:
        self._within: dict[int, list[ast.JoinedStr]] = {}
        self._walk(tree, [])

    def _walk(self, node: ast.AST, around: list[ast.JoinedStr]) -> None:
        if isinstance(node, ast.JoinedStr):
            around = [*around, node]
        elif around:
            self._within[id(node)] = around
        for child in ast.iter_child_nodes(node):
            self._walk(child, around)

    def around(self, node: ast.AST) -> ast.JoinedStr | None:
        """The f-string that `node` is in, the outermost one; None if it is in none."""
        return self._within.get(id(node), [None])[0]

    def fitting(self, node: ast.AST, text: str, source: str, at: int) -> str | None:
        """`text`, which is quoted by `"`, as it may stand in the place of `node`.

        source, at  of the f-string around it the text, and where in it `node` begins.

        None where there is no such text: in an f-string within another one, and in one of both quotes.
        """
        if '"' not in text or self.around(node) is None:
            return text
        quote = _quote_at(source, at)
        if len(self._within[id(node)]) > 1 or quote is None or "'" in text:
            return None
        return text if quote == "'" else text.replace('"', "'")


def _quote_at(source: str, at: int) -> str | None:
    """The quote of that of the strings behind each other in `source` in which the place `at` is."""
    begin = 0
    while match := _BEGIN.match(source, begin):
        quote = match[1]
        end = re.compile(rf"(?:\\.|.)*?{quote}", re.DOTALL).match(source, match.end())
        if end is None or end.end() > at:
            return quote[0]
        begin = end.end()
    return None
