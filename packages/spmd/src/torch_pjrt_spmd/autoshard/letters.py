"""The letters of an operator: which parts of the dims of its inputs and results are one and the same.

As in an einsum, a letter stands for a range of indices that chips can share out. Other than there, a dim may
have several: one of 128 that is seen as (8, 16) somewhere is the letters b, s, and chips may share out b
alone.

    linear(x, w): (b s) i, o i -> (b s) o       spread along i: results are added up over the chips
    softmax(x):   b s v -> b s v                spread along v: the sums of each row are, and their maxima
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from torch_pjrt_spmd.autoshard.between import most_between
from torch_pjrt_spmd.autoshard.jaxpr_rows import Place, Row, each_place
from torch_pjrt_spmd.autoshard.jaxpr_steps import Steps
from torch_pjrt_spmd.cuts import NOWHERE, Cuts, joined, sizes, through_reshape

Dims = tuple[tuple[int, ...], ...]  # of each dim its letters, the slowest first


@dataclass(frozen=True, slots=True)
class Sum:
    """What is added up where one of some letters is spread.

    letters  those. of: the letters of what is added up, with its bytes an element and how often.
    before   the inputs that it depends on. direct: those that also go past it. after: the results it goes to.
    """

    letters: frozenset[int]
    of: tuple[int, ...]
    itemsize: int
    runs: int
    before: frozenset[int]
    direct: frozenset[int]
    after: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Letters:
    """An operator's.

    sizes     of each letter. whole: letters that no chip may have a part of only.
    inputs, outputs   the letters of their dims. works: multiplications, and the letters that share them out.
    is_view   it moves elements and computes nothing. is_heavy: what it takes and makes is in memory.
    is_expensive   what each element has for itself is not computed twice.
    between   what is in memory within it when most is, but for what it takes and makes: bytes, and letters.
    unknown   primitives in it without a row: it is computed by each chip alike.
    """

    sizes: tuple[int, ...]
    whole: frozenset[int]
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    sums: tuple[Sum, ...]
    works: tuple[tuple[int, frozenset[int]], ...]
    is_view: bool
    is_heavy: bool
    is_random: bool
    unknown: tuple[str, ...]
    is_expensive: bool = False
    between: tuple[tuple[int, frozenset[int]], ...] = ()


AllCuts = tuple[tuple[Cuts, ...], ...]  # of each value, of each dim

_VIEWS = {
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "squeeze",
    "expand_dims",
    "slice",
    "copy",
    "rev",
}

# XLA's list (`HloInstruction::IsExpensive` of its fusions), by JAX's names.
_EXPENSIVE = {
    *(
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "cos",
        "cosh",
        "div",
        "erf",
    ),
    *(
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "digamma",
        "lgamma",
        "log",
        "log1p",
        "logistic",
        "pow",
    ),
    *("rem", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "sort", "threefry2x32", "random_bits"),
}


def cuts_through(
    steps: Steps, of_inputs: AllCuts, of_outputs: AllCuts
) -> tuple[list[list[Cuts]], ...]:
    """Where dims are cut: of all variables, by where inputs and results are, and by its own reshapes."""
    known = [[NOWHERE] * len(shape) for shape in steps.shapes]
    for number, cuts in zip(steps.inputs, of_inputs, strict=True):
        known[number] = [joined(a, b) for a, b in zip(known[number], cuts, strict=True)]
    for number, cuts in zip(steps.outputs, of_outputs, strict=True):
        if number is not None:
            known[number] = [joined(a, b) for a, b in zip(known[number], cuts, strict=True)]
    changed = True
    while changed:
        changed = False
        for order in (steps.steps, reversed(steps.steps)):
            for step in order:
                changed |= _spread_cuts(steps, known, step.taken, step.made, step.row)
        for a, b, front in steps.same:
            for d in range(len(steps.shapes[b])):
                changed |= _join(known, steps.shapes, [(a, d + front), (b, d)])
    return (known,)


def _spread_cuts(
    steps: Steps,
    known: list[list[Cuts]],
    taken: Sequence[int | None],
    made: Sequence[int],
    row: Row,
) -> bool:
    changed = False
    for link in row.links:
        positions = [p for p in _positions(link, taken, made) if p is not None]
        changed |= _join(known, steps.shapes, positions)
    if row.reshape and taken[0] is not None:
        for a, b in ((taken[0], made[0]), (made[0], taken[0])):
            through = through_reshape(steps.shapes[a], known[a], steps.shapes[b])
            for d, cuts in enumerate(through):
                new = joined(known[b][d], cuts or NOWHERE)
                if new != known[b][d]:
                    known[b][d], changed = new, True
    return changed


def _positions(
    link: Sequence[Place], taken: Sequence[int | None], made: Sequence[int]
) -> Iterator[tuple[int, int] | None]:
    for n, d in link:
        number = made[-n - 1] if n < 0 else taken[n]
        yield None if number is None else (number, d)


def _join(
    known: list[list[Cuts]], shapes: Sequence[Any], positions: Sequence[tuple[int, int]]
) -> bool:
    if len({shapes[v][d] for v, d in positions}) > 1 or not any(known[v][d] for v, d in positions):
        return False
    found = NOWHERE
    for v, d in positions:
        found = joined(found, known[v][d])
    changed = False
    for v, d in positions:
        new = joined(known[v][d], found)
        if new != known[v][d]:
            known[v][d], changed = new, True
    return changed


class _Same:
    """Places that are one: a forest."""

    def __init__(self) -> None:
        self.parent: list[int] = []

    def new(self) -> int:
        self.parent.append(len(self.parent))
        return len(self.parent) - 1

    def root(self, i: int) -> int:
        while self.parent[i] != i:
            self.parent[i] = self.parent[self.parent[i]]
            i = self.parent[i]
        return i

    def join(self, a: int, b: int) -> None:
        self.parent[self.root(a)] = self.root(b)


def letters_of(steps: Steps, known: list[list[Cuts]]) -> Letters:
    """Of a program whose dims are cut so."""
    same = _Same()
    atoms: list[list[list[int]]] = []  # of each variable, dim: forest entries
    extent: list[int] = []
    for shape, cuts in zip(steps.shapes, known, strict=True):
        of_variable = []
        for n, of_dim in zip(shape, cuts, strict=True):
            parts = [p for p in sizes(n, of_dim) if p != 1]
            of_variable.append([same.new() for _ in parts])
            extent += parts
        atoms.append(of_variable)
    whole: set[int] = set()
    for step in steps.steps:
        _join_step(step.taken, step.made, step.row, atoms, extent, same, whole)
    for a, b, front in steps.same:
        for d in range(len(steps.shapes[b])):
            _join_atoms(atoms[a][d + front], atoms[b][d], extent, same, whole)
        for d in range(front):
            whole.update(atoms[a][d])
    numbers: dict[int, int] = {}
    found_sizes: list[int] = []

    def letter(atom: int) -> int:
        root = same.root(atom)
        if root not in numbers:
            numbers[root] = len(numbers)
            found_sizes.append(extent[root])
        return numbers[root]

    def dims(number: int | None) -> Dims:
        if number is None:
            return ()
        return tuple(tuple(letter(a) for a in of_dim) for of_dim in atoms[number])

    inputs = tuple(dims(n) for n in steps.inputs)
    outputs = tuple(dims(n) for n in steps.outputs)
    sums = tuple(_sums(steps, dims, letter, atoms))
    works = tuple(
        (
            step.row.multiplications * step.runs,
            frozenset(
                x for n in (*step.taken, *step.made) if n is not None for d in dims(n) for x in d
            ),
        )
        for step in steps.steps
        if step.row.multiplications
    )
    return Letters(
        tuple(found_sizes),
        frozenset(letter(a) for a in whole),
        inputs,
        outputs,
        sums,
        works,
        all(step.name in _VIEWS for step in steps.steps),
        any(step.row.heavy for step in steps.steps),
        any("random" in step.name or "threefry" in step.name for step in steps.steps),
        tuple(sorted({step.name for step in steps.steps if not step.known})),
        any(step.name in _EXPENSIVE for step in steps.steps),
        tuple(
            (
                prod(steps.shapes[n]) * steps.itemsizes[n],
                frozenset(x for d in dims(n) for x in d),
            )
            for n in most_between(steps)
        ),
    )


def _join_step(
    taken: Sequence[int | None],
    made: Sequence[int],
    row: Row,
    atoms: Sequence[Sequence[list[int]]],
    extent: Sequence[int],
    same: _Same,
    whole: set[int],
) -> None:
    if row.reshape:
        if taken[0] is not None:
            _join_reshaped(
                [a for d in atoms[taken[0]] for a in d], [a for d in atoms[made[0]] for a in d],
                extent, same, whole,
            )  # fmt: skip
        return
    for link in row.links:
        positions = [p for p in _positions(link, taken, made) if p is not None]
        for (v, d), (w, e) in pairwise(positions):
            _join_atoms(atoms[v][d], atoms[w][e], extent, same, whole)
    spoken_of = set(each_place(row))
    for n, number in (*enumerate(taken), *((-i - 1, m) for i, m in enumerate(made))):
        if number is not None:
            for d, of_dim in enumerate(atoms[number]):
                if (n, d) not in spoken_of:
                    whole.update(of_dim)
    for position in [p for pair in row.moved for p in pair]:
        for p in _positions([position], taken, made):
            if p is not None:
                whole.update(atoms[p[0]][p[1]])


def _join_atoms(
    a: list[int], b: list[int], extent: Sequence[int], same: _Same, whole: set[int]
) -> None:
    if [extent[x] for x in a] != [extent[x] for x in b]:
        whole.update(a)
        whole.update(b)
        return
    for x, y in zip(a, b, strict=True):
        same.join(x, y)


def _join_reshaped(
    a: list[int], b: list[int], extent: Sequence[int], same: _Same, whole: set[int]
) -> None:
    i = j = 0
    before_a = before_b = 1
    while i < len(a) and j < len(b):
        if before_a == before_b and extent[a[i]] == extent[b[j]]:
            same.join(a[i], b[j])
            before_a, before_b = before_a * extent[a[i]], before_b * extent[b[j]]
            i, j = i + 1, j + 1
        elif before_a * extent[a[i]] <= before_b * extent[b[j]]:
            whole.add(a[i])
            before_a *= extent[a[i]]
            i += 1
        else:
            whole.add(b[j])
            before_b *= extent[b[j]]
            j += 1
    whole.update(a[i:])
    whole.update(b[j:])


def _sums(steps: Steps, dims: Any, letter: Any, atoms: Any) -> Iterator[Sum]:
    inputs_of = _depends(steps)
    for step in steps.steps:
        positions = [*step.row.summed, *step.row.lookups]
        summed = {
            letter(a)
            for p in _positions(positions, step.taken, step.made)
            if p is not None
            for a in atoms[p[0]][p[1]]
        }
        if not summed:
            continue
        for result in step.made:
            reached = _reached(steps, result)
            past = _past(steps, step)
            yield Sum(
                frozenset(summed),
                tuple(x for d in dims(result) for x in d),
                steps.itemsizes[result],
                step.runs,
                frozenset(inputs_of[result]),
                frozenset(inputs_of[result] & past),
                frozenset(i for i, n in enumerate(steps.outputs) if n in reached),
            )


def _depends(steps: Steps) -> list[set[int]]:
    """Of each variable the inputs that it depends on, by their place."""
    found: list[set[int]] = [set() for _ in steps.shapes]
    for i, number in enumerate(steps.inputs):
        found[number].add(i)
    for step in steps.steps:
        used = {i for n in step.taken if n is not None for i in found[n]}
        for n in step.made:
            found[n] |= used
    return found


def _reached(steps: Steps, start: int) -> set[int]:
    """The variables that depend on one."""
    found = {start}
    for step in steps.steps:
        if any(n in found for n in step.taken):
            found.update(step.made)
    return found


def _past(steps: Steps, at: Any) -> set[int]:
    """The inputs that get to a result, or to what follows a step, by ways that do not lead through it."""
    known: list[set[int]] = [set() for _ in steps.shapes]
    for i, number in enumerate(steps.inputs):
        known[number].add(i)
    for step in steps.steps:
        used = set() if step is at else {i for n in step.taken if n is not None for i in known[n]}
        for n in step.made:
            known[n] |= used
    return {i for n in steps.outputs if n is not None for i in known[n]}
