"""The instructions of a compiled program, by XLA's text of it: which of the user's operators each computes.

Programs that are compiled with source lines have an `op_name` on each instruction, which
`observe/xla_metadata.py` wrote there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_HEAD = re.compile(r"^(?:ENTRY )?%?(\S+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?(\S+) = (?:\(.*?\)|\S+) ([\w-]+)\(")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"calls=%?([\w.-]+)")
_OPERATOR = re.compile(r"(?:^|/)([\w.]+)\(([^()/]+:\d+)\)")
_NO_MODULES = re.compile(r"^(jit\(\w+\)|while|body|closed_call|)$")


class Source(NamedTuple):
    """An operator in the user's program.

    operator  `aten.mm.default`; or what XLA calls it, where no line was noted.
    where     `model.py:12`; "" where no line was noted.
    module    `GPT/blocks.3/attn`.
    backward  it computes a gradient of what that line computed.
    """

    operator: str
    where: str = ""
    module: str = ""
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.operator}, backward" if self.backward else self.operator


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of XLA's: its name, its kind (`fusion`, `dot`, ...), the operators that it computes.

    The first source is the one that XLA names it for; the others are fused with it.
    """

    name: str
    kind: str
    sources: Sequence[Source]


def instructions_of(text: str) -> Mapping[str, Instruction]:
    """All instructions of a program by their names, which are unique in it; `text` is optimized HLO."""
    inside: dict[str, list[Source]] = {}
    found: list[tuple[str, str, Source | None, str]] = []
    computation = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            computation = head[1]
        elif instruction := _INSTRUCTION.match(line):
            named, called = _OP_NAME.search(line), _CALLED.search(line)
            source = source_of(named[1]) if named else None
            if source is not None:
                inside.setdefault(computation, []).append(source)
            found.append((instruction[1], instruction[2], source, called[1] if called else ""))
    return {
        name: Instruction(name, kind, _distinct([source, *inside.get(called, ())]))
        for name, kind, source, called in found
    }


def source_of(op_name: str) -> Source:
    """What an `op_name` tells, `jit(step)/GPT/head/backward/aten.mm.default(model.py:12)/dot_general`."""
    op_name = op_name.split(";", maxsplit=1)[
        0
    ]  # XLA joins those of instructions that it made one of
    operators = list(_OPERATOR.finditer(op_name))
    if not operators:
        return Source(op_name.rsplit("/", 1)[-1])
    operator = operators[-1]
    # What stands before another operator, a loop, is where that one is.
    begin = operators[-2].end() if len(operators) > 1 else 0
    parts = op_name[begin : operator.start()].split("/")
    scopes = [p for p in parts if not _NO_MODULES.match(p)]
    backward = scopes[-1:] == ["backward"]
    return Source(operator[1], operator[2], "/".join(scopes[: -1 if backward else None]), backward)


def _distinct(sources: Sequence[Source | None]) -> list[Source]:
    """Each once, in order; those without a line only if there is none with one."""
    each = list(dict.fromkeys(s for s in sources if s is not None))
    return [s for s in each if s.where] or each[:1]
