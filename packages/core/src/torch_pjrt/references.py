"""How many references an object has: the one module that knows what Python adds to what one asks for.

`sys.getrefcount` counts the one that its caller holds too, and how many that are depends on the form of the
call and on the version of Python. Two forms are used, and both were measured when this was imported:

    getrefcount(x) of a local variable   `OF_A_LOCAL` where one other place holds the object
    map(getrefcount, items)              `counts`, as a difference

A function's argument is neither: how many references that has depends on whether Dynamo looks at each
frame, as it does in what it has compiled and after a failure. So a function here is given a list and never
the object itself, and who calls `getrefcount` (in paths that each step goes through) calls it with a
variable of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getrefcount
from typing import Any, TypeVar

T = TypeVar("T")


def counts(items: Iterable[Any]) -> list[int]:
    """Of each item, the references besides that of `items`, or of where an iterator takes it from."""
    of_items = _OF_ITEMS
    return [n - of_items for n in map(getrefcount, items)]


def held_elsewhere(items: Sequence[T]) -> list[T]:
    """The items that somebody besides `items` holds."""
    count, alone = getrefcount, OF_A_LOCAL
    return [item for item in items if count(item) > alone]


def are_held_once(items: Sequence[Any]) -> bool:
    """Whether at most one place besides `items` holds each of them."""
    return max(map(getrefcount, items), default=0) <= _OF_ITEMS + 1


def _of_a_local() -> int:
    place = [object()]
    [local] = place
    return getrefcount(local)


OF_A_LOCAL = _of_a_local()
[_OF_ITEMS] = map(getrefcount, [object()])
