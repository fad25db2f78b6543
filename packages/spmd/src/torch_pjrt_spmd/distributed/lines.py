"""Where the ranks of groups lie: lines of a grid, if their numbers say so, and the grid that several make.

A rank's groups are the rows and columns of a mesh through it, as `DeviceMesh` numbers ranks: along each dim
numbers grow by a stride. So from the numbers in the groups alone it is known which other ranks the mesh has,
and which groups of theirs are its other rows and columns. A flattened mesh is a line along several dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

# The name of the axis of ranks that run a program with the collectives of one group.
AXIS = "ranks"

# Strides, and how many ranks there are at each, the largest stride first.
Steps = tuple[tuple[int, int], ...]
# Of a group: which one it is of those with the same ranks, and its steps; no steps: no line of a grid.
Line = tuple[int, Steps]


def steps_of(ranks: Sequence[int]) -> Steps:
    """How the numbers of ranks come about: sums of multiples of strides, the first stride the slowest.

    >>> steps_of([0, 2]), steps_of([4, 5, 6, 7]), steps_of([1, 2, 9, 10]), steps_of([0, 1, 3])
    (((2, 2),), ((1, 4),), ((8, 2), (1, 2)), ())
    """
    found: list[tuple[int, int]] = []
    rest = [rank - ranks[0] for rank in ranks]
    while len(rest) > 1:
        stride, n = rest[1], 1
        while n < len(rest) and rest[n] == n * stride:
            n += 1
        whole = [start + i * stride for start in rest[::n] for i in range(n)]
        if stride <= 0 or len(rest) % n or whole != rest:
            return ()
        found.append((stride, n))
        rest = rest[::n]
    strides = [stride for stride, _ in reversed(found)]
    if any(
        below[0] * below[1] > above for below, above in zip(found, strides[-2::-1], strict=False)
    ):
        return ()
    return tuple(reversed(found))


def axes_of(line: Line) -> tuple[str, ...]:
    """The axes of a group's collectives, in the program that JAX traces now."""
    import jax

    names = jax.sharding.get_abstract_mesh().axis_names
    if AXIS in names:
        return (AXIS,)
    return tuple(name for name in names if _is_within(int(name), line[1]))


def _is_within(stride: int, steps: Steps) -> bool:
    return any(least <= stride < least * n for least, n in steps)


@dataclass(frozen=True)
class Ground:
    """The ranks of a grid, and its axes.

    ranks   numbers in the run, in order.
    steps   of its axes.
    """

    ranks: tuple[int, ...]
    steps: Steps

    @property
    def axes(self) -> dict[str, int]:
        """Their names, as `axes_of` reads them, and how long they are."""
        return {str(stride): n for stride, n in self.steps}

    def parallel(self, ranks: Sequence[int]) -> list[tuple[int, ...]]:
        """The lines of the grid that are parallel to these ranks, these included."""
        offsets = [rank - ranks[0] for rank in ranks]
        others = [step for step in self.steps if not _is_within(step[0], steps_of(ranks))]
        return [tuple(start + o for o in offsets) for start in _sums(self.ranks[0], others)]


def ground_of(own: int, groups: Iterable[Sequence[int]]) -> Ground | None:
    """The least grid of which these groups through this rank are lines; None where there is none.

    >>> ground_of(1, [(0, 1), (1, 3)])
    Ground(ranks=(0, 1, 2, 3), steps=((2, 2), (1, 2)))
    >>> ground_of(5, [(4, 5, 6, 7), (4, 5)]).axes
    {'2': 2, '1': 2}
    >>> ground_of(0, [(0, 1, 2), (0, 2)]) is None
    True
    """
    groups = [tuple(ranks) for ranks in groups]
    lines = [steps_of(ranks) for ranks in groups]
    cuts = sorted({cut for steps in lines for least, n in steps for cut in (least, least * n)})
    if not all(lines) or any(high % low for low, high in pairwise(cuts)):
        return None
    start, steps = own, []
    for low, high in reversed(list(pairwise(cuts))):
        through = [
            ranks for ranks, line in zip(groups, lines, strict=True) if _is_within(low, line)
        ]
        coordinates = {(own - ranks[0]) // low % (high // low) for ranks in through}
        if len(coordinates) > 1:
            return None
        if coordinates:
            steps.append((low, high // low))
            start -= low * coordinates.pop()
    ground = Ground(tuple(_sums(start, steps)), tuple(steps))
    are_lines = all(ranks in ground.parallel(ranks) for ranks in groups)
    return ground if are_lines else None


def _sums(start: int, steps: Iterable[tuple[int, int]]) -> list[int]:
    """All sums of multiples of the strides, from a start; in the order of steps."""
    ranges = [range(0, stride * n, stride) for stride, n in steps]
    return [start + sum(parts) for parts in product(*ranges)]
