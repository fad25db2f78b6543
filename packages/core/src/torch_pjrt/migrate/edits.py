"""Pieces of a text that are replaced, one within another."""

from __future__ import annotations

import ast


class Edits:
    """Replacements in a Python source, by the nodes of its syntax tree.

    A node within a replaced one is replaced first: the outer one is made of the text that the inner one gave.
    """

    def __init__(self, source: str) -> None:
        self._source = source.encode()  # nodes count bytes of UTF-8
        self._line_end = "\r\n" if "\r\n" in source else "\n"
        self._starts = [0]
        for line in self._source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._replaced: dict[tuple[int, int], str] = {}
        self._removed: set[int] = set()

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where `node` begins and ends, in bytes."""
        begin = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return begin, end

    def text(self, node: ast.AST) -> str:
        """The text of `node`, with what was replaced in it."""
        return self._between(*self.span(node))

    def source(self, node: ast.AST) -> str:
        """The text of `node` as it was."""
        begin, end = self.span(node)
        return self._source[begin:end].decode(errors="replace")

    def offset(self, node: ast.AST, within: ast.AST) -> int:
        """Where the text of `node` begins in that of `within`, in characters."""
        begin = self.span(within)[0]
        return len(self._source[begin : self.span(node)[0]].decode(errors="replace"))

    def replace(self, node: ast.AST, text: str) -> None:
        """Have `text` in the place of `node`."""
        self._put(self.span(node), text)

    def insert_line(self, line: int, text: str) -> None:
        """Have `text`, without a line break, as a line before the line of that number (from 1)."""
        at = self._starts[line - 1]
        self._put((at, at), text + self._line_end + self._replaced.get((at, at), ""))

    def remove(self, statement: ast.stmt) -> None:
        """Take the statement away, and its lines if nothing else is on them."""
        self._removed.add(id(statement))
        begin, end = self.span(statement)
        line_begin = self._starts[statement.lineno - 1]
        line_end = self._starts[statement.end_lineno or statement.lineno]
        rest = self._source[end:line_end].strip()
        alone = not self._source[line_begin:begin].strip() and (not rest or rest.startswith(b"#"))
        self._put((line_begin, line_end) if alone else (begin, end), "" if alone else "pass")

    def fill_empty_blocks(self, tree: ast.Module) -> None:
        """Have `pass` in blocks of which every statement was removed."""
        for node in ast.walk(tree):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if not isinstance(block, list) or not block or node is tree:
                    continue
                if all(id(statement) in self._removed for statement in block):
                    begin, _ = self.span(block[0])
                    line_begin = self._starts[block[0].lineno - 1]
                    indent = self._source[line_begin:begin].decode()
                    if not indent.strip():
                        self.insert_line(block[0].lineno, indent + "pass")

    def result(self) -> str:
        """The whole text with all replacements."""
        return self._between(0, len(self._source))

    def _put(self, span: tuple[int, int], text: str) -> None:
        begin, end = span
        for other in [s for s in self._replaced if begin <= s[0] and s[1] <= end and begin < end]:
            del self._replaced[other]
        self._replaced[span] = text

    def _between(self, begin: int, end: int) -> str:
        pieces, at = [], begin
        for (b, e), text in sorted(self._replaced.items()):
            if begin <= b and e <= end:
                pieces += [self._source[at:b].decode(), text]
                at = e
        pieces.append(self._source[at:end].decode())
        return "".join(pieces)
