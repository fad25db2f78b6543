"""Where a dim that was made of several is cut to get them back.

A cut is the product of the sizes before it: a dim of 24 that was 2, 3 and 4 has the cuts 2 and 6. Each cut
divides the next. `ANYWHERE` stands for all cuts there could be: of a dim along which a value does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

Cuts = frozenset[int]
NOWHERE: Cuts = frozenset()
ANYWHERE = None


def sizes(n: int, cuts: Cuts) -> list[int]:
    """The dims that a dim of n becomes."""
    if not cuts:
        return [n]
    return [after // before for before, after in pairwise([1, *sorted(cuts), n])]


def both(a: Cuts | None, b: Cuts | None) -> Cuts | None:
    """The cuts that each of them has."""
    if a is None:
        return b
    return a if b is None else a & b


def joined(a: Cuts, b: Cuts) -> Cuts:
    """The cuts of one and of the other, if they can be had together; else those of `a`."""
    found = a | b
    fit = all(after % before == 0 for before, after in pairwise(sorted(found)))
    return found if fit else a


def through_reshape(
    taken: Sequence[int], cuts: Sequence[Cuts | None], made: Sequence[int]
) -> list[Cuts | None]:
    """Those of what a reshape makes, by those of what it takes."""
    found: list[Cuts | None] = [NOWHERE] * len(made)
    if 0 in taken:
        return found
    for dims, of_made in _blocks(taken, made):
        if all(cuts[d] is ANYWHERE or taken[d] == 1 for d in dims):
            for d in of_made:
                found[d] = ANYWHERE
            continue
        ends = {1, prod(taken[d] for d in dims)}
        inside = _of_block(taken, dims, cuts) | ends
        for d, before in _with_products(made, of_made):
            after = before * made[d]
            if before in inside and after in inside:
                found[d] = frozenset(c // before for c in inside if before < c < after)
    return found


def back_through_reshape(
    taken: Sequence[int], cuts: Sequence[Cuts | None], made: Sequence[int], wanted: Sequence[Cuts]
) -> list[Cuts]:
    """Those that are wanted of what a reshape takes, which has `cuts`: by those that are `wanted` of what it
    makes, and because the reshape itself cuts.
    """
    found: list[Cuts] = [NOWHERE] * len(taken)
    if 0 in taken:
        return found
    for dims, of_made in _blocks(taken, made):
        is_constant = all(cuts[d] is ANYWHERE or taken[d] == 1 for d in dims)
        if is_constant and not any(wanted[d] for d in of_made):
            continue
        inside = _of_block(made, of_made, wanted)
        for d, before in _with_products(taken, dims):
            has = cuts[d]
            after = before * taken[d]
            asked = {c // before for c in inside if before < c < after and c % before == 0}
            if has is not None:
                found[d] = has & asked
            elif is_constant:
                found[d] = joined(NOWHERE, frozenset(c for c in asked if taken[d] % c == 0))
    return found


def _blocks(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The dims of two shapes in the smallest groups of equal size."""
    i = j = 0
    while i < len(a) or j < len(b):
        start_i, start_j = i, j
        i, j = min(i + 1, len(a)), min(j + 1, len(b))
        while (of_a := prod(a[start_i:i])) != (of_b := prod(b[start_j:j])):
            i, j = (i + 1, j) if of_a < of_b else (i, j + 1)
        yield list(range(start_i, i)), list(range(start_j, j))


def _with_products(shape: Sequence[int], dims: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The dims of a block, each with the product of those before it."""
    before = 1
    for d in dims:
        yield d, before
        before *= shape[d]


def _of_block(shape: Sequence[int], dims: Sequence[int], cuts: Sequence[Cuts | None]) -> set[int]:
    """All cuts of a block: between its dims and within them."""
    found: set[int] = set()
    for d, before in _with_products(shape, dims):
        found |= {before, *(before * c for c in cuts[d] or ())}
    return found - {1, prod(shape[d] for d in dims)}
