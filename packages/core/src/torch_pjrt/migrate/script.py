"""One script rewritten: its uses of torch_xla, the texts that name the device, and its imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from torch_pjrt.migrate import imports
from torch_pjrt.migrate.calls import arguments, filled
from torch_pjrt.migrate.edits import Edits
from torch_pjrt.migrate.names import STARTS_PROCESSES, TEXTS, Drop, Rename, Rewrite, Row, row_of
from torch_pjrt.migrate.quotes import Quotes
from torch_pjrt.migrate.uses import Use, Uses

# What a text is handed to that names a device, a backend or an address; and a variable.
_TAKES_TEXTS = frozenset(("device", "to", "autocast", "compile", "init_process_group"))
_TAKES_VARIABLES = frozenset(("get", "getenv", "setdefault", "pop"))
_WORDS = frozenset(("device", "device_type", "backend", "init_method", "map_location"))
# What is compared with the text of a device.
_DEVICES = frozenset(("type", "device_type", "device", "dev", "platform"))
_IN_AN_F_STRING = "write it before the f-string, which has both quotes: "
_COMPARED = 'if this is a device or its type, it is "pjrt" now'


@dataclass(frozen=True)
class Remark:
    """What the reader is told of a line (from 1): `by_hand` if it is theirs to change, else to know."""

    line: int
    name: str
    text: str
    by_hand: bool


@dataclass(frozen=True)
class Migrated:
    """The text of a script for torch-pjrt, and what is to be said of it, by line."""

    text: str
    remarks: list[Remark]


def has_several_processes(source: str) -> bool:
    """Whether the script starts processes, or joins a group of them. Raises `SyntaxError`."""
    tree = ast.parse(source)
    joins = any(
        isinstance(node, ast.Attribute) and node.attr == "init_process_group"
        for node in ast.walk(tree)
    )
    return joins or any(use.name in STARTS_PROCESSES for use in Uses.of(tree).found)


def migrated(source: str, *, several_processes: bool = False) -> Migrated:
    """The script `source`, written for torch_xla, as one for torch-pjrt.

    several_processes  it runs in more than one. `xm.optimizer_step`, which sums gradients over all of them,
                       is not just the optimizer's step then, and is left to the reader.

    A script that does not import torch_xla keeps its text, but for `"xla"` as a device.
    Raises `SyntaxError` for what is not Python.
    """
    tree = ast.parse(source)
    edits = Edits(source)
    script = _Script(tree, edits, several_processes)
    for use in script.uses.found:
        script.rewrite(use)
    script.rewrite_texts(tree)
    imports.renew(tree, script.uses, script.rewritten, script.needed, edits)
    edits.fill_empty_blocks(tree)
    remarks = sorted(script.remarks, key=lambda remark: remark.line)
    return _checked(source, Migrated(edits.result(), remarks))


def _checked(source: str, result: Migrated) -> Migrated:
    """`result`, or the script as it was if it would be no Python any more."""
    try:
        ast.parse(result.text)
    except SyntaxError as error:
        told = Remark(1, "", f"the file is left as it was: rewritten, {error}", by_hand=True)
        return Migrated(source, [told, *result.remarks])
    return result


class _Script:
    def __init__(self, tree: ast.Module, edits: Edits, several: bool) -> None:
        self.uses = Uses.of(tree)
        self.edits = edits
        self.processes = "several" if several else "one"
        self.rewritten: list[Use] = []
        self.needed: list[str] = []
        self.quotes = Quotes(tree)
        self.remarks: list[Remark] = []
        self._statements = {
            id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }

    def rewrite(self, use: Use) -> None:
        """Do what the row of the name says, or tell the reader."""
        row = row_of(use.name)
        done = getattr(row, "processes", "any") in ("any", self.processes) and self._done(use, row)
        if done:
            self.rewritten.append(use)
        if not done or (row.hint and not isinstance(row, Rewrite)):
            hint = row.hint or f"write `{row.to}`"  # type: ignore[union-attr]
            self._say(use.node, use.name.removeprefix("torch_xla."), hint, by_hand=not done)

    def _done(self, use: Use, row: Row) -> bool:
        if self.edits.source(use.root) != use.root.id:
            # Python 3.11 does not know where it is, in some f-strings of several lines.
            return False
        if isinstance(row, Rename):
            self.edits.replace(use.node, row.to)
            self.needed.append(row.to.rpartition(".")[0])
            return True
        if isinstance(row, Drop) and id(use.call) in self._statements:
            self.edits.remove(self._statements[id(use.call)])
            return True
        return isinstance(row, Rewrite) and self._call(use, row)

    def rewrite_texts(self, tree: ast.AST) -> None:
        """`"xla"` as the device that a call takes becomes `"pjrt"`, and so on."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                self._texts_of_call(node)
            elif isinstance(node, ast.Compare):
                self._compared(node)
            elif isinstance(node, ast.Subscript) and _last_name(node.value) == "environ":
                self._renamed(node.slice, variables=True)
            elif isinstance(node, ast.MatchValue) and _is_device(node.value):
                self._say(node.value, "match", _COMPARED, by_hand=True)

    def _texts_of_call(self, call: ast.Call) -> None:
        name = _last_name(call.func)
        of = _last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name in _TAKES_TEXTS:
            for argument in call.args:
                self._renamed(argument)
        if name in _TAKES_VARIABLES and (of == "environ" or name == "getenv"):
            for argument in call.args[:1]:
                self._renamed(argument, variables=True)
        if name == "startswith" and any(_is_device(argument) for argument in call.args):
            self._say(call, "startswith", _COMPARED, by_hand=True)
        for keyword in call.keywords:
            if keyword.arg in _WORDS:
                self._renamed(keyword.value)

    def _compared(self, node: ast.Compare) -> None:
        """`device.type == "xla"`, `device.type in ("cuda", "xla")`: the text is of a device if it is compared
        with what is called so; else the reader has to know."""
        sides = [node.left, *node.comparators]
        texts = [
            one
            for side in sides
            for one in (side.elts if isinstance(side, (ast.Tuple, ast.List, ast.Set)) else [side])
            if _is_device(one)
        ]
        known = any(_last_name(side) in _DEVICES for side in sides)
        for text in texts:
            if not (known and self._renamed(text)):
                self._say(node, "a comparison", _COMPARED, by_hand=True)

    def _renamed(self, node: ast.expr, *, variables: bool = False) -> bool:
        """Whether `node` was a text of the table, of a variable or of anything else, which it now is not."""
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            return False
        if node.value not in TEXTS or node.value.isupper() != variables:
            return False
        text = self._fitting(node, f'"{TEXTS[node.value]}"')
        if text is None:
            self._say(node, node.value, f"{_IN_AN_F_STRING}{TEXTS[node.value]}", by_hand=True)
            return True
        self.edits.replace(node, text)
        return True

    def _fitting(self, node: ast.expr, text: str) -> str | None:
        around = self.quotes.around(node)
        if around is None:
            return text
        source, at = self.edits.source(around), self.edits.offset(node, around)
        return self.quotes.fitting(node, text, source, at)

    def _call(self, use: Use, row: Rewrite) -> bool:
        given = arguments(use.call, row.parameters.split()) if use.call is not None else None
        if use.call is None or given is None:
            return False
        kept = {name: node for name, node in given.items() if name not in row.unused.split()}
        to = self._fitting(use.call, row.to)
        text = None if to is None else filled(to, kept, self.edits.text)
        if text is None:
            return False
        self.edits.replace(use.call, text)
        self.needed += row.imports.split()
        return True

    def _say(self, node: ast.expr, name: str, text: str, *, by_hand: bool) -> None:
        self.remarks.append(Remark(node.lineno, name, text, by_hand))


def _is_device(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("xla", "xla:0")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
