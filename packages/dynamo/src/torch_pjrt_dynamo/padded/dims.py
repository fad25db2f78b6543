"""Factors of dims: what PyTorch's symbolic sizes say about where the padding of a tensor is.

Factors are numbers and *atoms*. An atom is a symbol, or a symbol plus a number (`s0 - 1`); along it the
true elements come first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from torch_pjrt.extend.padding import Dim, Factor, Unsuited, packed

Capacities = Mapping[sympy.Symbol, int]


def expression(size: Any) -> sympy.Expr:
    """The symbolic expression of a size that PyTorch traced."""
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def is_atom(expr: sympy.Expr) -> bool:
    """Whether the expression is a symbol, or one plus a number: it grows as the symbol does."""
    if expr.is_Symbol:
        return True
    if not isinstance(expr, sympy.Add) or len(expr.args) != 2:
        return False
    number, symbol = expr.args
    return isinstance(number, sympy.Integer) and bool(symbol.is_Symbol)


def monomial(expr: sympy.Expr) -> tuple[int, tuple[Factor, ...]]:
    """A size as a number times atoms."""
    if isinstance(expr, sympy.Integer):
        return int(expr), ()
    if is_atom(expr):
        return 1, (expr,)
    number, atoms = 1, []
    for part in sympy.Mul.make_args(sympy.factor(expr)):  # pyright: ignore[reportArgumentType]
        base, power = part.as_base_exp()
        if isinstance(part, sympy.Integer) and int(part) > 0:
            number *= int(part)
        elif is_atom(base) and isinstance(power, sympy.Integer) and int(power) > 0:
            atoms += [base] * int(power)
        else:
            raise Unsuited(f"a size is `{expr}`, which is no product of sizes that vary")
    return number, tuple(atoms)


def dim_of(size: Any) -> Dim:
    """A dim of which the size is all that matters: its elements along it are equal, or it has one factor."""
    number, atoms = monomial(expression(size))
    return packed((number, *atoms))


def dims_of(shape: Iterable[Any]) -> tuple[Dim, ...]:
    """`dim_of` each size."""
    return tuple(map(dim_of, shape))


def capacity_of(factor: Factor, capacities: Capacities) -> int:
    """How many elements there is room for along a factor."""
    return factor if isinstance(factor, int) else int(factor.subs(capacities))


def size_of(dim: Dim, capacities: Capacities) -> int:
    """How many elements there is room for along a dim."""
    return math.prod(capacity_of(f, capacities) for f in dim)


def true_size(dim: Dim) -> sympy.Expr:
    """How many elements there are, as PyTorch knows it."""
    return sympy.Mul(*dim) if dim else sympy.Integer(1)


def regrouped(dims: Sequence[Dim], shape: Sequence[Any]) -> tuple[Dim, ...]:
    """The dims of a view of that shape: its factors are the same in the same order, numbers may be split."""
    left = list(packed(f for dim in dims for f in dim))
    made = []
    for size in shape:
        number, atoms = monomial(expression(size))
        wanted, dim = list(atoms), []
        while number != 1 or wanted:
            if not left:
                raise Unsuited("a view splits a size that varies")
            factor = left.pop(0)
            if not isinstance(factor, int):
                if factor not in wanted:
                    raise Unsuited(f"a view splits or merges `{factor}` in another order")
                wanted.remove(factor)
                dim.append(factor)
            elif number % factor == 0 and number != 1:
                number //= factor
                dim.append(factor)
            elif factor % number == 0 and number != 1:
                left.insert(0, factor // number)
                dim.append(number)
                number = 1
            else:
                raise Unsuited("a view splits a size that varies")
        made.append(packed(dim))
    if left:
        raise Unsuited("a view merges a size that varies in another order")
    return tuple(made)


def one_of_each(tensor: torch.Tensor) -> tuple[Dim, ...]:
    """The dims of a tensor without padding."""
    return tuple(packed((int(n),)) for n in tensor.shape)
