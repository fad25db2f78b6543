"""XLA's text of a compiled program, as instructions in computations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_HEAD = re.compile(r"^(ENTRY )?%?([^\s(]+) .*\{$")
_MADE = re.compile(r"^\s+(ROOT )?%?(\S+) = ")
_KIND = re.compile(r"\s*([\w-]+)\(")
_OPERAND = re.compile(r"%([\w.-]+)")
_CALLED = re.compile(
    r"(calls|to_apply|body|condition|\w+_computations?)=(?:%?([\w.-]+)|\{([^}]*)\})"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z0-9]*)\[([\d,]*)\]")
_LINE = re.compile(r'op_name="[^"]*\(([^()":]+:\d+)\)')


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of the text.

    made      what it makes, as XLA writes it: `f32[8,16]{1,0}`, or a tuple of such.
    operands  the names of what it reads. rest: all that is written behind its kind.
    """

    name: str
    made: str
    kind: str
    operands: Sequence[str]
    rest: str

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the arrays that it makes."""
        return [
            tuple(map(int, filter(None, dims.split(",")))) for _, dims in _ARRAY.findall(self.made)
        ]

    @property
    def called(self) -> dict[str, list[str]]:
        """The computations that it names, by how: `calls`, `body`, `branch_computations`, ..."""
        return {
            how: [one] if one else [name.strip().lstrip("%") for name in several.split(",")]
            for how, one, several in _CALLED.findall(self.rest)
        }

    @property
    def trip_count(self) -> int:
        """How often a loop's body runs; 1 where XLA does not know."""
        found = _TRIPS.search(self.rest)
        return int(found[1]) if found else 1

    @property
    def line(self) -> str | None:
        """Of the user's program, `model.py:12`, where that was noted."""
        found = _LINE.search(self.rest)
        return found and found[1]


@dataclass(frozen=True, slots=True)
class Hlo:
    """The computations by their names, each with its root last; `entry` is the program's own."""

    computations: Mapping[str, Sequence[Instruction]]
    entry: str


def parsed(text: str) -> Hlo:
    """The program of a text."""
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    roots: dict[str, Instruction] = {}
    name = ""
    for line in text.splitlines():
        if (made := _MADE.match(line)) is not None:
            instruction = _instruction(made[2], line[made.end() :])
            if instruction is None:
                continue
            if made[1]:
                roots[name] = instruction
            else:
                computations.setdefault(name, []).append(instruction)
        elif (head := _HEAD.match(line)) is not None:
            name = head[2]
            entry = name if head[1] else entry
    for of, root in roots.items():
        computations.setdefault(of, []).append(root)
    return Hlo(computations, entry)


def _instruction(name: str, text: str) -> Instruction | None:
    end = _closed(text, 0) if text.startswith("(") else text.find(" ")
    kind = _KIND.match(text, end)
    if kind is None:
        return None
    end_of_operands = _closed(text, kind.end() - 1)
    given = text[kind.end() : end_of_operands]
    operands = _OPERAND.findall(given) if kind[1] != "constant" else ()
    return Instruction(name, text[:end], kind[1], operands, text[kind.end() :])


def _closed(text: str, start: int) -> int:
    """Behind the parenthesis that closes the one at `start`."""
    depth = 0
    for found in re.finditer(r"[()]", text[start:]):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return start + found.end()
    return len(text)
