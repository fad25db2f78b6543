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
_CONSTANT = re.compile(r"(\d+)\)")
_INDEX = re.compile(r"index=(\d+)")
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
    def line(self) -> str | None:
        """Of the user's program, `model.py:12`, where that was noted."""
        found = _LINE.search(self.rest)
        return found and found[1]


@dataclass(frozen=True, slots=True)
class Hlo:
    """The computations by their names, each with its root last; `entry` is the program's own."""

    computations: Mapping[str, Sequence[Instruction]]
    entry: str

    def trip_count(self, loop: Instruction) -> int:
        """How often a loop's body runs; 1 where it is not known.

        XLA says it, or the condition does: that a counter, which begins at 0, is less than a constant. The
        body adds another constant to it.
        """
        if (found := _TRIPS.search(loop.rest)) is not None:
            return int(found[1])
        condition, body = (self._by_name(loop.called[of][0]) for of in ("condition", "body"))
        *_, root = [None, *condition.values()]
        if root is None or root.kind != "compare" or "direction=LT" not in root.rest:
            return 1
        counter, limit = (condition.get(name) for name in root.operands)
        end = _constant(limit)
        index = _INDEX.search(counter.rest) if counter is not None else None
        if end is None or index is None:
            return 1
        *_, given = [None, *body.values()]
        after = body.get(given.operands[int(index[1])]) if given is not None else None
        if after is None or after.kind != "add":
            return 1
        steps = [n for name in after.operands if (n := _constant(body.get(name)))]
        return -(-end // steps[0]) if steps else 1

    def line_of(self, one: Instruction) -> str | None:
        """Of the user's program: of what reads the instruction, where it has none of its own.

        XLA gathers an argument for an operation, and says of that where it comes from.
        """
        if one.line is not None:
            return one.line
        readers = (i for of in self.computations.values() for i in of if one.name in i.operands)
        return next((i.line for i in readers if i.line is not None), None)

    def _by_name(self, computation: str) -> dict[str, Instruction]:
        return {one.name: one for one in self.computations.get(computation, ())}


def _constant(one: Instruction | None) -> int | None:
    """The integer that an instruction is."""
    if one is None or one.kind != "constant":
        return None
    found = _CONSTANT.match(one.rest)
    return int(found[1]) if found is not None else None


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
