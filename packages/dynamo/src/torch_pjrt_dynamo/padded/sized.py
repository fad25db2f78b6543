"""Tensors with room, and the call that a rule is given."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from torch_pjrt.extend import record_call
from torch_pjrt.extend.padding import fill_rest
from torch_pjrt_dynamo.operators import recorded
from torch_pjrt_dynamo.padded.dims import (
    Dim,
    Factor,
    NotProvable,
    Rooms,
    is_padded,
    room_of,
    size_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A tensor of the room's size, and of what factors its dims are made."""

    tensor: torch.Tensor
    dims: tuple[Dim, ...]

    @property
    def is_padded(self) -> bool:
        return any(map(is_padded, self.dims))

    @property
    def ndim(self) -> int:
        return len(self.dims)


@dataclass(frozen=True, slots=True)
class Size:
    """A number that a call gets: a size, or what was computed of sizes."""

    expr: sympy.Expr


class Sizes:
    """What a graph with room is recorded for.

    rooms   of each symbol, how many elements there is room for.
    counts  of each symbol, how many there are: an int64 of the device, without dims.
    """

    def __init__(self, rooms: Rooms, counts: Mapping[sympy.Symbol, torch.Tensor]) -> None:
        self.rooms = rooms
        self.counts = counts
        self._filled: dict[Any, tuple[Sized, Sized]] = {}
        self._numbers: dict[Factor, torch.Tensor] = {}

    def room(self, dim: Dim) -> int:
        return size_of(dim, self.rooms)

    def count(self, atom: Factor) -> torch.Tensor:
        """How many true elements there are along an atom."""
        if atom.is_Symbol:
            return self.counts[atom]
        if atom not in self._numbers:
            number, symbol = atom.args
            self._numbers[atom] = self.counts[symbol] + int(number)
        return self._numbers[atom]

    def filled(self, x: Sized, dims: Iterable[int], value: float) -> Sized:
        """`x` with `value` in the room of these dims."""
        wanted = tuple(sorted({d for d in dims if is_padded(x.dims[d])}))
        if not wanted:
            return x
        key = id(x), wanted, repr(value)
        if key not in self._filled:
            self._filled[key] = (
                self._fill(x, wanted, value),
                x,
            )  # `x` lives on, so that its id is its own
        return self._filled[key][0]

    def _fill(self, x: Sized, dims: Sequence[int], value: float) -> Sized:
        split: list[int] = []
        places: list[tuple[int, Factor]] = []
        for d, dim in enumerate(x.dims):
            if d not in dims:
                split.append(self.room(dim))
                continue
            places += [(len(split) + i, f) for i, f in enumerate(dim) if not isinstance(f, int)]
            split += [room_of(f, self.rooms) for f in dim]
        shape = tuple(x.tensor.shape)
        tensor = x.tensor if shape == tuple(split) else x.tensor.reshape(split)
        for place, atom in places:
            args = (tensor, self.count(atom), place, 1, value)
            tensor = record_call(fill_rest, args, {})
        return Sized(tensor if tuple(tensor.shape) == shape else tensor.reshape(shape), x.dims)

    def all_filled(self, x: Sized, value: float) -> Sized:
        """`x` with `value` in all of its room."""
        return self.filled(x, range(x.ndim), value)

    def sized(self, tensor: torch.Tensor, dims: Sequence[Dim]) -> Sized:
        """A result, which must be of the size that is claimed."""
        shape = tuple(map(self.room, dims))
        if tuple(tensor.shape) != shape:
            raise NotProvable(f"a result of shape {tuple(tensor.shape)} should have been {shape}")
        return Sized(tensor, tuple(dims))


@dataclass(slots=True)
class Call:
    """One node of the graph: an operator, and its arguments by name, those left out with their defaults.

    Tensors among them are `Sized`, numbers made of sizes are `Size`.

    traced  what PyTorch traced the result to be: a tensor with a symbolic shape, or a list.
    """

    op: Any
    given: dict[str, Any]
    sizes: Sizes
    traced: Any

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def shape(self) -> Sequence[Any]:
        """The symbolic shape of the one result."""
        return self.traced.shape

    def do(self, op: Any = None, /, **changed: Any) -> Any:
        """What the operator makes of the arguments, some of them changed: tensors of the room's size.

        Raises `NotProvable` for a number made of sizes: only a rule knows whether the room's is meant.
        """
        op = self.op if op is None else op
        given = {**self.given, **changed}
        if any(isinstance(x, Size) for x in leaves(list(given.values()))):
            raise NotProvable("it takes a size as a number")
        arguments = op._schema.arguments
        args = [self.plain(given[a.name]) for a in arguments if not a.kwarg_only]
        kwargs = {a.name: self.plain(given[a.name]) for a in arguments if a.kwarg_only}
        return recorded(op, tuple(args), kwargs)

    def plain(self, x: Any) -> Any:
        """An argument as operators take it; a size is that of the room."""
        if isinstance(x, Sized):
            return x.tensor
        if isinstance(x, Size):
            return int(x.expr.subs(self.sizes.rooms))
        if isinstance(x, (list, tuple)):
            return [self.plain(i) for i in x]
        return x

    def dim(self, name: str = "dim", of: str = "self") -> int:
        """An argument that names a dim, counted from the start."""
        return self.given[name] % max(self.given[of].ndim, 1)


def leaves(x: Any) -> list[Any]:
    """What is in lists within lists."""
    if isinstance(x, (list, tuple)):
        return [leaf for part in x for leaf in leaves(part)]
    return [x]


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch computes with this one: a float of 16 bits has too few digits for sizes."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def only(call: Call, *names: str) -> None:
    """Raises `NotProvable` if a tensor beside these has room, or a number is made of sizes."""
    for name, x in call.given.items():
        for part in x if isinstance(x, (list, tuple)) else (x,):
            if isinstance(part, Size) or (
                isinstance(part, Sized) and part.is_padded and name not in names
            ):
                raise NotProvable(f"`{name}` depends on a size that varies")


def one_factor(dim: Dim) -> None:
    """Raises `NotProvable` for a dim in which true elements are not the first."""
    if len(dim) > 1 and is_padded(dim):
        raise NotProvable("it works along a dim into which one that varies was merged")


def volume(call: Call, dims: Iterable[Dim]) -> torch.Tensor | int:
    """How many true elements there are in these dims together."""
    factors = [f for dim in dims for f in dim]
    number: Any = math.prod(f for f in factors if isinstance(f, int))
    for atom in factors:
        if not isinstance(atom, int):
            number = call.sizes.count(atom) * number
    return number
