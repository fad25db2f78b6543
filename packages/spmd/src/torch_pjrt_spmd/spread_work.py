"""Which chips do the same: of a program that XLA has partitioned, along which axes each value differs.

All chips run one program. What an instruction makes differs between chips along an axis of the mesh if
something that it reads does: inputs along the axes that they are spread over, the chip's own number along
all. An all-reduce or all-gather along an axis gives chips along it the same. So follows for each instruction
the axes along which chips do the same work over again.

Numbers that XLA computes from the chip's own (where in a table its part begins) are computed here too, since
the few values of a table may be the same for chips along an axis.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from torch_pjrt_spmd.hlo import Hlo, Instruction
from torch_pjrt_spmd.products import products_of

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
    "reduce-scatter",
)
# What moves or makes elements and computes none.
_MOVING = """
    after-all async-done async-start async-update bitcast bitcast-convert broadcast concatenate constant
    convert copy copy-done copy-start domain dynamic-slice dynamic-update-slice gather get-tuple-element iota
    opt-barrier pad parameter partition-id replica-id reshape reverse slice transpose tuple
    """
_FREE = frozenset(_MOVING.split())
# What makes of an input the same input, or a part of it.
_KEEPING = """
    bitcast convert copy copy-done copy-start dynamic-slice get-tuple-element opt-barrier parameter reshape
    slice transpose
    """
_KEEPS_INPUT = frozenset(_KEEPING.split())
_COMPUTED: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
    "remainder": operator.mod,
    "and": operator.and_,
    "or": operator.or_,
    "minimum": np.minimum,
    "maximum": np.maximum,
}
_COMPARED: Mapping[str, Callable[[Any, Any], Any]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
_TABLE = re.compile(r"[su]\d+\[\d*\]")
_STEP_OF_CHAIN = re.compile(r"channel_id=(\d+),.*chain_id=")
_DIRECTION = re.compile(r"direction=(\w\w)")


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a value.

    axes      along which it differs between chips.
    is_input  it is an input of the program, a part of one, or made of nothing but constants.
    numbers   small integers that are known: an array (chips, elements).
    parts     of a tuple.
    """

    axes: frozenset[str] = frozenset()
    is_input: bool = True
    numbers: np.ndarray | None = None
    parts: tuple[Known, ...] | None = None

    def same(self, other: Known) -> bool:
        """Whether the same is known of both."""
        if self.parts is not None and other.parts is not None:
            pairs = zip(self.parts, other.parts, strict=True)
            return all(a.same(b) for a, b in pairs)
        return self.axes == other.axes and self.is_input == other.is_input


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of the program.

    axes        along which its groups of chips lie. runs: how often it runs, by the loops around it.
    of_input    it exchanges an input of the program, a parameter say, and nothing that was computed.
    taken, made    the shapes, on one chip, of what it takes and makes.
    """

    instruction: Instruction
    kind: str
    axes: tuple[str, ...]
    runs: int
    of_input: bool
    taken: Sequence[tuple[int, ...]]
    made: Sequence[tuple[int, ...]]


@dataclass
class Work:
    """Of one chip, in operations: two for each product that a matrix product or convolution sums, one for
    each element that another instruction computes.

    total     all of it. same: what all chips do alike. same_along: what chips along an axis do alike.
    products  those of matrix products and convolutions alone.
    lines     what all chips do alike, by the user's line, where that was noted.
    """

    total: int = 0
    products: int = 0
    same: int = 0
    same_along: Counter[str] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)


class Walk:
    """One walk through a program: fills `work` and `exchanges`."""

    def __init__(
        self,
        hlo: Hlo,
        axes: Mapping[str, int],
        inputs: Sequence[frozenset[str]],
        axes_of: Callable[[str], tuple[str, ...]],
    ) -> None:
        """axes: of the mesh, with their sizes. inputs: the axes of each of the program's, in order.
        axes_of: those of a collective, from what XLA writes of its groups.
        """
        self.work = Work()
        self.exchanges: list[Exchange] = []
        self._chains: set[str] = set()
        self._hlo, self._mesh, self._axes_of = hlo, axes, axes_of
        self._n_chips = prod(axes.values())
        self._spread = frozenset(name for name, n in axes.items() if n > 1)
        arguments = [Known(axes & self._spread) for axes in inputs]
        self._run(hlo.entry, arguments, 1)

    def _run(self, name: str, arguments: Sequence[Known], times: int) -> Known:
        """What a computation gives. Counts what it does `times` times; 0: only looks."""
        known: dict[str, Known] = {}
        made: dict[str, Instruction] = {}
        last = Known()
        for one in self._hlo.computations.get(name, ()):
            operands = [known.get(o, Known()) for o in one.operands]
            if one.kind == "parameter":
                number = int(one.rest.partition(")")[0])
                last = arguments[number] if number < len(arguments) else Known()
            else:
                last = self._of(one, operands, [made[o] for o in one.operands if o in made], times)
            known[one.name], made[one.name] = last, one
        return last

    def _of(
        self, one: Instruction, operands: list[Known], makers: list[Instruction], times: int
    ) -> Known:
        kind = one.kind.removesuffix("-start")
        if kind in COLLECTIVES:
            return self._exchanged(one, kind, operands, makers, times)
        if one.kind == "tuple":
            return _joined(operands, parts=tuple(operands))
        if one.kind == "get-tuple-element":
            return _part(one, operands)
        if one.kind == "while":
            return self._loop(one, operands[0], times)
        if one.kind in ("fusion", "call", "async-start") and (called := one.called):
            return self._run(next(iter(called.values()))[0], operands, times)
        if one.kind == "conditional":
            branches = [name for names in one.called.values() for name in names]
            given = [
                self._run(b, [operand], times)
                for b, operand in zip(branches, operands[1:], strict=False)
            ]
            return _joined([operands[0], *given])
        if one.kind == "partition-id":
            return self._of_numbers(np.arange(self._n_chips).reshape(-1, 1))
        found = self._numbers(one, operands)
        if found is None:
            found = _joined(operands, is_input=one.kind in _KEEPS_INPUT or not operands)
        self._count(one, found.axes, makers, times)
        return found

    def _loop(self, one: Instruction, begun: Known, times: int) -> Known:
        body = one.called["body"][0]
        state = begun
        while not (after := _either(state, self._run(body, [state], 0))).same(state):
            state = after
        return _either(state, self._run(body, [state], times * self._hlo.trip_count(one)))

    def _exchanged(
        self,
        one: Instruction,
        kind: str,
        operands: list[Known],
        makers: list[Instruction],
        times: int,
    ) -> Known:
        axes = self._axes_of(one.rest)
        known = _joined(operands, is_input=False)
        if times and not self._is_known(one):
            taken = [shape for maker in makers for shape in maker.shapes]
            of_input = all(o.is_input for o in operands)
            self.exchanges.append(
                Exchange(one, kind, axes, times, of_input, taken, one.shapes[-len(taken) :])
            )
        if kind in ("all-gather", "all-reduce", "collective-broadcast"):
            return Known(known.axes - set(axes), is_input=False)
        return Known(known.axes | (self._spread & set(axes)), is_input=False)

    def _is_known(self, one: Instruction) -> bool:
        """Whether it is a later step of one that counts already: TPUs' compiler writes such for each step."""
        channel = _STEP_OF_CHAIN.search(one.rest)
        if channel is None:
            return False
        known = channel[1] in self._chains
        self._chains.add(channel[1])
        return known

    def _numbers(self, one: Instruction, operands: list[Known]) -> Known | None:
        """What is known of small integers, if that is more than that they are some."""
        given = [o.numbers for o in operands]
        if one.kind == "constant" and _TABLE.match(one.made):
            found = [int(n) for n in re.findall(r"-?\d+", one.rest.partition(")")[0])]
            return Known(numbers=np.array([found] * self._n_chips)) if found else None
        if not given or any(n is None for n in given):
            return None
        numbers = [n for n in given if n is not None]
        if one.kind in ("bitcast", "convert", "copy", "reshape"):
            return self._of_numbers(numbers[0])
        if one.kind in ("compare", *_COMPUTED) and len(numbers) == 2:
            if one.kind == "compare":
                direction = _DIRECTION.search(one.rest)
                compute = _COMPARED[direction[1]] if direction else operator.eq
            else:
                compute = _COMPUTED[one.kind]
            with np.errstate(all="ignore"):
                return self._of_numbers(compute(*numbers))
        if one.kind == "select" and len(numbers) == 3:
            return self._of_numbers(np.where(*numbers))
        if one.kind == "dynamic-slice" and one.shapes == [(1,)] and numbers[0].ndim == 2:
            index = np.clip(numbers[1], 0, numbers[0].shape[1] - 1)
            return self._of_numbers(np.take_along_axis(numbers[0], index, 1))
        return None

    def _of_numbers(self, numbers: np.ndarray) -> Known:
        """With the axes along which they differ."""
        by_axis = numbers.reshape(*self._mesh.values(), -1)
        axes = [
            name
            for axis, name in enumerate(self._mesh)
            if (by_axis != np.take(by_axis, [0], axis)).any()
        ]
        return Known(frozenset(axes), is_input=False, numbers=numbers)

    def _count(
        self, one: Instruction, axes: frozenset[str], makers: list[Instruction], times: int
    ) -> None:
        if not times or one.kind in _FREE or one.kind.endswith("-done"):
            return
        products = products_of(one, makers)
        operations = times * (products or _others(one, makers))
        self.work.total += operations
        self.work.products += times * products
        for name in self._spread - axes:
            self.work.same_along[name] += operations
        if not axes:
            self.work.same += operations
            if (line := one.line) is not None:
                self.work.lines[line] += operations


def _others(one: Instruction, makers: Sequence[Instruction]) -> int:
    """Operations of another instruction."""
    made = sum(map(prod, one.shapes))
    if one.kind.startswith("reduce"):
        return max([made, *[prod(shape) for maker in makers for shape in maker.shapes]])
    return made


def _part(one: Instruction, operands: Sequence[Known]) -> Known:
    index = re.search(r"index=(\d+)", one.rest)
    [of] = operands or [Known()]
    if of.parts is None or index is None or int(index[1]) >= len(of.parts):
        return of
    return of.parts[int(index[1])]


def _joined(
    known: Sequence[Known], *, is_input: bool = True, parts: tuple[Known, ...] | None = None
) -> Known:
    axes = frozenset[str]().union(*[k.axes for k in known])
    return Known(axes, is_input and all(k.is_input for k in known), None, parts)


def _either(a: Known, b: Known) -> Known:
    """What holds of a value that is one or the other."""
    if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
        parts = tuple(_either(x, y) for x, y in zip(a.parts, b.parts, strict=True))
        return _joined(parts, parts=parts)
    return _joined([a, b])
