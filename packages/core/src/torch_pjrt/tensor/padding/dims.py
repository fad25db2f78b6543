"""Dims of padded tensors: of what factors each is made, and so where its padding is.

A dim is a tuple of factors, from the slowest to the fastest: numbers (neighbours are merged, 1 is
left out) and sizes that vary. Along one of the latter the true elements come first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Factor = Any  # an int, or what stands for a size that varies: equal ones are the same size
Dim = tuple[Factor, ...]


class Unsuited(Exception):
    """It is not known how to do a call on padded arrays; the text says what and why.

    >>> try:
    ...     one_factor(("n", 4))
    ... except Unsuited as why:
    ...     print(why)
    it works along a dim into which one that varies was merged
    """


def packed(factors: Iterable[Factor]) -> Dim:
    """The factors with numbers that are neighbours merged and 1 left out.

    >>> packed([2, 1, 3, "n", 4])
    (6, 'n', 4)
    """
    dim: list[Factor] = []
    for factor in factors:
        if isinstance(factor, int):
            if factor == 1:
                continue
            if dim and isinstance(dim[-1], int):
                dim[-1] *= factor
                continue
        dim.append(factor)
    return tuple(dim)


def has_padding(dim: Dim) -> bool:
    """Whether a size that varies is among the dim's factors.

    >>> has_padding(("n", 4)), has_padding((4,))
    (True, False)
    """

    return any(not isinstance(f, int) for f in dim)


def one_factor(dim: Dim) -> None:
    """Raises `Unsuited` for a dim in which true elements are not the first.

    >>> one_factor(("n",))
    >>> one_factor(("n", 4))
    Traceback (most recent call last):
    torch_pjrt.tensor.padding.dims.Unsuited: it works along a dim into which one that varies was merged
    """
    if len(dim) > 1 and has_padding(dim):
        raise Unsuited("it works along a dim into which one that varies was merged")


def broadcast(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """The dims of tensors that are broadcast together. Raises `Unsuited` where they differ.

    >>> broadcast([[("n",), (3,)], [(3,)]])
    (('n',), (3,))
    """
    ndim = max(map(len, shapes), default=0)
    made: list[Dim] = [()] * ndim
    for dims in shapes:
        for position, dim in enumerate(dims, ndim - len(dims)):
            if not dim or dim == made[position]:
                continue
            if made[position]:
                raise Unsuited("it joins sizes that vary in another order")
            made[position] = dim
    return tuple(made)


def joined(parts: Iterable[Sequence[Dim]], but: int) -> None:
    """Raises `Unsuited` unless the tensors have the same dims but for one."""
    if len({(*dims[:but], *dims[but + 1 :]) for dims in parts}) > 1:
        raise Unsuited("it joins sizes that vary in another order")
