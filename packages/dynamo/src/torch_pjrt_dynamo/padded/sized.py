"""A node of a graph as a call with padded tensors: sizes are symbols, whose numbers the device holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from torch_pjrt.extend import record_call
from torch_pjrt.extend.padding import (
    Dim,
    Factor,
    PaddedCall,
    Sized,
    Unsuited,
    broadcast,
    has_padding,
    is_pointwise,
    leaves,
    looks_at_values,
    one_factor,
    takes_indices,
)
from torch_pjrt.plugin import aten
from torch_pjrt_dynamo.operators import on_device, recorded
from torch_pjrt_dynamo.padded.arithmetic import number
from torch_pjrt_dynamo.padded.dims import (
    Capacities,
    dim_of,
    dims_of,
    expression,
    size_of,
    true_size,
)


@dataclass(frozen=True, slots=True)
class Size:
    """A number that a call gets: a size, or what was computed of sizes."""

    expr: sympy.Expr


class Sizes:
    """What a graph with padding is recorded for.

    capacities  of each symbol, how many elements there is room for.
    counts      of each symbol, how many there are: an int64 of the device, without dims.
    filled      what was filled with a number along some dims.
    """

    def __init__(self, capacities: Capacities, counts: Mapping[sympy.Symbol, torch.Tensor]) -> None:
        self.capacities = capacities
        self.counts = counts
        self.filled: dict[Any, tuple[Sized, Sized]] = {}
        self._numbers: dict[Factor, torch.Tensor] = {}

    def count(self, atom: Factor) -> torch.Tensor:
        """How many true elements there are along an atom."""
        if atom.is_Symbol:
            return self.counts[atom]
        if atom not in self._numbers:
            number, symbol = atom.args
            self._numbers[atom] = self.counts[symbol] + int(number)
        return self._numbers[atom]


class NodeCall(PaddedCall):
    """One node of the graph. Tensors are `Sized`, numbers made of sizes are `Size`.

    traced  what PyTorch traced the result to be: a tensor with a symbolic shape, or a list.
    """

    def __init__(self, op: Any, given: dict[str, Any], sizes: Sizes, traced: Any) -> None:
        self.op = op
        self.sizes = sizes
        self.traced = traced
        self.given = given
        if looks_at_values(op):  # of which 1 is a good one
            self.given = {
                name: self.all_filled(x, 1) if isinstance(x, Sized) else x
                for name, x in given.items()
            }

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    @property
    def shape(self) -> Sequence[Any]:
        """The symbolic shape of the one result."""
        return self.traced.shape

    def count(self, factor: Factor) -> tuple[torch.Tensor, int]:
        return self.sizes.count(factor), 1

    def capacity(self, dim: Dim) -> int:
        return size_of(dim, self.sizes.capacities)

    def plain(self, x: Any) -> Any:
        """An argument as operators take it; a size is the padded one."""
        if isinstance(x, Size):
            return int(x.expr.subs(self.sizes.capacities))  # pyright: ignore[reportCallIssue, reportArgumentType]
        return super().plain(x)

    def filled(self, x: Sized, dims: Iterable[int], value: float) -> Sized:
        dims = tuple(sorted(dims))
        key = id(x), dims, repr(value)
        if key not in self.sizes.filled:  # `x` lives on, so that its id is its own
            self.sizes.filled[key] = super().filled(x, dims, value), x
        return self.sizes.filled[key][0]

    def do(self, /, **changed: Any) -> Any:
        """Raises `Unsuited` for a number made of sizes: only a rule knows if the padded size is meant."""
        op, given = self.op, {**self.given, **changed}
        if any(isinstance(x, Size) for x in leaves(list(given.values()))):
            raise Unsuited("it takes a size as a number")
        arguments = op._schema.arguments
        args = tuple(self.plain(given[a.name]) for a in arguments if not a.kwarg_only)
        kwargs = {a.name: self.plain(given[a.name]) for a in arguments if a.kwarg_only}
        if takes_indices(op):  # they are checked by `check_indices`
            return record_call(op, args, on_device(kwargs))
        return recorded(op, args, kwargs)

    def result(self, tensor: torch.Tensor, dims: Sequence[Dim]) -> Sized:
        """It must be of the size that is claimed."""
        shape = tuple(map(self.capacity, dims))
        if tuple(tensor.shape) != shape:
            raise Unsuited(f"a result of shape {tuple(tensor.shape)} should have been {shape}")
        return Sized(tensor, tuple(dims))

    def flow(self) -> Callable[[Any], Any]:
        """A dim is padded as that dim of the arguments is which has its size."""
        if is_pointwise(self.op):
            dims = broadcast(
                [x.dims for x in leaves([*self.given.values()]) if isinstance(x, Sized)]
            )
            return lambda result: self.result(result, dims)
        known: dict[sympy.Expr, Dim] = {}
        for x in leaves(list(self.given.values())):
            for dim in x.dims if isinstance(x, Sized) else ():
                if has_padding(dim) and known.setdefault(sympy.expand(true_size(dim)), dim) != dim:
                    raise Unsuited("it joins sizes that vary in another order")

        return lambda result: self._flowed(result, self.traced, known)

    def _flowed(self, result: Any, traced: Any, known: dict[sympy.Expr, Dim]) -> Any:
        if isinstance(result, (list, tuple)):
            return [self._flowed(r, t, known) for r, t in zip(result, traced, strict=True)]
        if not isinstance(result, torch.Tensor):
            return result
        return self.result(result, [_dim(size, known) for size in traced.shape])

    def resized(self, d: int, capacity: int, size: torch.Tensor | int, parts: list[Dim]) -> Dim:
        dim = dim_of(self.shape[d])
        one_factor(dim)
        return dim

    def made_of(self, value: Any) -> Sized:
        dims = dims_of(self.shape)
        shape = [self.capacity(dim) for dim in dims]
        if isinstance(value, Size):
            value = number(value.expr, self.sizes.counts)
        if isinstance(value, torch.Tensor):
            made = value.to(self.traced.dtype).expand(shape).clone()
        else:
            made = self.record(aten.full.default, shape, value, dtype=self.traced.dtype)
        return self.result(made, dims)


def _dim(size: Any, known: dict[sympy.Expr, Dim]) -> Dim:
    found = known.get(sympy.expand(expression(size)))
    if found is not None:
        return found
    dim = dim_of(size)
    one_factor(dim)
    return dim
