"""A quick look at everything a step sees: is each object the one that was there?

What was met on the walk is kept in flat lists, by how it is read, so that a look runs in C: it gathers what
they hold now in tuples, whose items must be those of the first look.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import chain
from operator import attrgetter, is_, itemgetter
from types import CellType, FunctionType, MappingProxyType
from typing import Any

import torch

from torch_pjrt.replays.kinds import content_of

_parts_of_function = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_content_of_cell = attrgetter("cell_contents")
_needs_gradients = attrgetter("requires_grad")
_hooks_of = attrgetter("_backward_hooks")
_storage_of = torch.Tensor.untyped_storage
_strides_of = torch.Tensor.stride
_shape_of = torch.Tensor.size


# What is raised where something is not there any more, or changes while it is looked at.
CHANGES = (AttributeError, KeyError, RuntimeError, StopIteration, ValueError)


class Watched:
    """What is looked at.

    mappings     all values, and as keys the last one: a new key comes last. `empty`: those that were empty.
    keyed        dictionaries that users write; all keys.
    chosen       the values of some keys: those that the step's code names, and the last key.
    slots        objects, and names of their attributes.
    named        of a module's or a function's globals, the values of these names; they may be missing.
    sequences    lists and the like; their items.
    functions    code and defaults; `cells`: what closures hold.
    objects      which class each is of.
    variables    of a context: their values.
    tensors      on pjrt: memory, position in it, whether they need gradients, hooks.
    arrays       NumPy's, Python's and CPU tensors: the content of small ones.
    """

    def __init__(self) -> None:
        self.mappings: list[dict[Any, Any]] = []
        self.empty: list[dict[Any, Any]] = []
        self.keyed: list[dict[Any, Any]] = []
        self.proxies: list[MappingProxyType[str, Any]] = []
        self.chosen: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self.named: list[tuple[Mapping[str, Any], tuple[str, ...]]] = []
        self.slots: list[tuple[Any, str]] = []
        self.sequences: list[Iterable[Any]] = []
        self.functions: list[FunctionType] = []
        self.cells: list[CellType] = []
        self.objects: list[Any] = []
        self.variables: list[ContextVar[Any]] = []
        self.tensors: list[torch.Tensor] = []
        self.arrays: list[Any] = []
        self._parts: list[tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = []
        self._positions: Any = None

    def begin(self) -> None:
        """What is there now is what has to be there."""
        self.empty += [x for x in self.mappings if not x]
        self.mappings = [x for x in self.mappings if x]
        self.keyed = [x for x in self.keyed if x]
        self._parts = [(read, read()) for read in self._reads()]
        self._positions = self._look_at_positions()

    def holds(self) -> bool:
        """Whether every object is the one that was there at `begin`."""
        try:
            return (
                not any(self.empty)
                and all(_are(read(), items) for read, items in self._parts)
                and self._look_at_positions() == self._positions
            )
        except CHANGES:
            return False

    def _reads(self) -> Iterator[Callable[[], tuple[Any, ...]]]:
        """What gathers the objects that are there; each of them not too many."""
        flat = chain.from_iterable
        for some in _parts_of(self.mappings):
            yield lambda some=some: tuple(flat(map(dict.values, some)))
            yield lambda some=some: tuple(map(next, map(reversed, some)))
        for some in _parts_of(self.keyed):
            yield lambda some=some: tuple(flat(some))
        for some in _parts_of(self.sequences):
            yield lambda some=some: tuple(flat(some))
        for some in _parts_of(self.tensors):
            yield lambda some=some: tuple(
                chain(map(_needs_gradients, some), map(_hooks_of, some), map(_storage_of, some))
            )
        for some in _parts_of(self.proxies):
            yield lambda some=some: tuple(
                chain(flat(some), flat(map(MappingProxyType.values, some)))
            )
        for some in _parts_of(self.chosen):
            readers = [_reader(*x) for x in some]
            yield lambda readers=readers: tuple(flat([read(x) for read, x in readers]))
            yield lambda some=some: tuple(map(next, map(reversed, [x for x, _ in some])))  # type: ignore[call-overload]
        yield lambda: tuple(
            chain(
                flat(map(x.get, names) for x, names in self.named),
                (getattr(x, name) for x, name in self.slots),
                flat(map(_parts_of_function, self.functions)),
                map(_content_of_cell, self.cells),
                map(type, self.objects),
                [x.get(None) for x in self.variables],
            )
        )

    def _look_at_positions(self) -> Any:
        return (
            list(map(_shape_of, self.tensors)),
            list(map(_strides_of, self.tensors)),
            list(map(content_of, self.arrays)),
        )


def _reader(
    values: dict[str, Any], names: tuple[str, ...]
) -> tuple[Callable[[Any], tuple[Any, ...]], dict[str, Any]]:
    return (itemgetter(*names, *names[:1]) if names else _nothing), values


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


def _parts_of(items: list[Any]) -> Iterator[list[Any]]:
    """So few at a time that what is gathered of them is small: large tuples cost the allocator much."""
    for start in range(0, len(items), _FEW):
        yield items[start : start + _FEW]


_FEW = 128
_ITEMS_OF_TUPLE = tuple.__basicsize__
_SIZE = ctypes.sizeof(ctypes.c_void_p)


def _are_one_by_one(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether they are the same objects."""
    return len(items) == len(others) and all(map(is_, items, others))


def _are_in_memory(items: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """The same, by the addresses that CPython keeps in a tuple."""
    n = len(items)
    return n == len(others) and not _compare(
        id(items) + _ITEMS_OF_TUPLE, id(others) + _ITEMS_OF_TUPLE, n * _SIZE
    )


def _compare_of_c() -> Any:
    """C's `memcmp`; None where it is not to be had, or where tuples lie otherwise in memory."""
    try:
        compare = ctypes.CDLL(None).memcmp
    except (AttributeError, OSError, TypeError):
        return None
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    items = (object(), "text", 1)
    addresses = b"".join(id(x).to_bytes(_SIZE, sys.byteorder) for x in items)
    fits = items.__sizeof__() == _ITEMS_OF_TUPLE + len(addresses)
    return (
        compare
        if fits and not compare(id(items) + _ITEMS_OF_TUPLE, addresses, len(addresses))
        else None
    )


_compare = _compare_of_c()
_are = _are_in_memory if _compare is not None else _are_one_by_one
