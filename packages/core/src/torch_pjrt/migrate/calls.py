"""A call of one function rewritten as a call of another one, argument by argument."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

# `{name}`: the text of that argument, `*{name}` of the parts of a tuple. `{, word=name}`: the same behind
# `, word=`, or nothing where the call does not have the argument.
_PIECE = re.compile(r"(\*)?\{(, (?:\w+=)?)?(\w+)\}")
_BINDS_CLOSELY = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def arguments(call: ast.Call, parameters: Sequence[str]) -> dict[str, ast.expr] | None:
    """The arguments of `call` by their parameters; None if they cannot be told, as behind a `*`."""
    if len(call.args) > len(parameters) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    given = dict(zip(parameters, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in parameters or keyword.arg in given:
            return None
        given[keyword.arg] = keyword.value
    return given


def filled(
    template: str, given: Mapping[str, ast.expr], text: Callable[[ast.AST], str]
) -> str | None:
    """`template` with the texts of the arguments; None if it lacks one, or if the call has one too many."""
    pieces, at, left = [], 0, set(given)
    for match in _PIECE.finditer(template):
        star, before, name = match.groups()
        pieces.append(template[at : match.start()])
        at = match.end()
        if name in given:
            left.discard(name)
            is_function = template[at : at + 1] in (".", "(")
            pieces.append((before or "") + _piece(given[name], star or "", is_function, text))
        elif before is None:
            return None
    return None if left else "".join([*pieces, template[at:]])


def _piece(node: ast.expr, star: str, is_function: bool, text: Callable[[ast.AST], str]) -> str:
    if star and isinstance(node, (ast.Tuple, ast.List)):
        return ", ".join(map(text, node.elts))
    written = text(node)
    if is_function and (not isinstance(node, _BINDS_CLOSELY) or "\n" in written):
        written = f"({written})"
    return star + written
