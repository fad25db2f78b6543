"""One script rewritten: its uses of torch_xla, the texts that name the device, and its imports."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from torch_pjrt.migrate import imports
from torch_pjrt.migrate.calls import arguments, filled
from torch_pjrt.migrate.edits import Edits
from torch_pjrt.migrate.names import STARTS_PROCESSES, TEXTS, Drop, Rename, Rewrite, Row, row_of
from torch_pjrt.migrate.uses import Use, Uses

# What a text is handed to that names a device, a backend, an address or a variable.
_TAKES_TEXTS = frozenset(
    ("device", "to", "autocast", "compile", "init_process_group", "get", "getenv", "setdefault")
)
_WORDS = frozenset(("device", "device_type", "backend", "init_method", "map_location"))


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
    return Migrated(edits.result(), sorted(script.remarks, key=lambda remark: remark.line))


class _Script:
    def __init__(self, tree: ast.Module, edits: Edits, several: bool) -> None:
        self.uses = Uses.of(tree)
        self.edits = edits
        self.processes = "several" if several else "one"
        self.rewritten: list[Use] = []
        self.needed: list[str] = []
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
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call):
                continue
            takes = _last_name(call.func) in _TAKES_TEXTS
            for node in [
                *(call.args if takes else ()),
                *(k.value for k in call.keywords if k.arg in _WORDS),
            ]:
                if (
                    isinstance(node, ast.Constant)
                    and node.value in TEXTS
                    and isinstance(node.value, str)
                ):
                    self.edits.replace(node, f'"{TEXTS[node.value]}"')
        for node in ast.walk(tree):  # os.environ["..."]
            if isinstance(node, ast.Subscript) and _last_name(node.value) == "environ":
                key = node.slice
                if isinstance(key, ast.Constant) and key.value in TEXTS:
                    self.edits.replace(key, f'"{TEXTS[key.value]}"')

    def _call(self, use: Use, row: Rewrite) -> bool:
        given = arguments(use.call, row.parameters.split()) if use.call is not None else None
        if use.call is None or given is None:
            return False
        kept = {name: node for name, node in given.items() if name not in row.unused.split()}
        text = filled(row.to, kept, self.edits.text)
        if text is None:
            return False
        self.edits.replace(use.call, text)
        self.needed += row.imports.split()
        return True

    def _say(self, node: ast.expr, name: str, text: str, *, by_hand: bool) -> None:
        self.remarks.append(Remark(node.lineno, name, text, by_hand))


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
