"""Sizes of `torch.export`, which are sympy's expressions, as symbolic dims of JAX.

before  s17 * 2 + 1, where s17 is called `batch` and is at most 64
after   batch*2 + 1 in a scope with the constraint `batch <= 64`
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from jax import core
from jax import export as jax_export
from torch.utils._pytree import tree_leaves

from torch_pjrt.errors import LoweringError


@dataclass(frozen=True, slots=True)
class Range:
    """A symbol's least and greatest size; None where there is no greatest."""

    least: int
    greatest: int | None


@dataclass(slots=True)
class Sizes:
    """The symbols of an exported program, each with its JAX dim.

    dims     symbol -> JAX dim.
    ranges   name of a dim -> what it may be.
    constraints    the same as JAX takes it.
    """

    dims: dict[sympy.Symbol, Any] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    constraints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, names: Mapping[sympy.Symbol, str]) -> Sizes:
        """Of a program; `names` says what its symbols are called, where the user has named them."""
        used = sorted(_symbols(program), key=str)
        taken: dict[sympy.Symbol, str] = {}
        for symbol in used:
            name = _name(names.get(symbol, str(symbol)))
            taken[symbol] = name if name not in taken.values() else f"{name}_{symbol}"
        ranges = {}
        for symbol in used:
            values = program.range_constraints.get(symbol)
            low = int(values.lower) if values is not None and values.lower.is_finite else 1
            high = (
                int(values.upper)
                if values is not None and values.upper.is_finite and values.upper.is_Integer
                else None
            )
            if high is not None and high >= 2**31:
                high = None
            ranges[taken[symbol]] = Range(max(low, 1), high)
        if not used:
            return cls()
        constraints = [
            *[f"{name} >= {r.least}" for name, r in ranges.items() if r.least > 1],
            *[f"{name} <= {r.greatest}" for name, r in ranges.items() if r.greatest is not None],
        ]
        dims = jax_export.symbolic_shape(", ".join(taken.values()) + ",", constraints=constraints)
        return cls(dict(zip(used, dims, strict=True)), ranges, constraints)

    def dim(self, size: Any) -> Any:
        """An int or a JAX dim, of an int, a SymInt or an expression.

        Raises `LoweringError` for a size that only values decide.
        """
        if isinstance(size, int):
            return size
        if isinstance(size, torch.SymInt):
            size = size.node.expr
        return self._of(sympy.sympify(size))

    def shape(self, shape: Iterable[Any]) -> tuple[Any, ...]:
        """Each size of a shape as a dim."""
        return tuple(self.dim(size) for size in shape)

    def _of(self, e: Any) -> Any:
        if e.is_Integer:
            return int(e)
        if isinstance(e, sympy.Symbol):
            if e not in self.dims:
                raise LoweringError(
                    f"`{e}` is a size that only values decide; an exported program's sizes follow from "
                    "those of its inputs.",
                    hint="give the result a fixed size: a mask instead of `x[mask]` and `nonzero`, sizes "
                    "as Python numbers instead of `.item()` (docs/export.md)",
                )
            return self.dims[e]
        parts = [self._of(a) for a in e.args]
        kind = type(e).__name__
        if e.is_Add:
            return sum(parts[1:], parts[0])
        if e.is_Mul:
            return _product(e, parts)
        rule = _FUNCTIONS.get(kind)
        if rule is None:
            raise LoweringError(f"The size `{e}` has no counterpart in JAX (`{kind}`).")
        return rule(*parts)


def _product(e: Any, parts: list[Any]) -> Any:
    result: Any = 1
    for part in parts:
        result = result * part
    return result


def _power(base: Any, exponent: Any) -> Any:
    result: Any = 1
    for _ in range(exponent):
        result = result * base
    return result


_FUNCTIONS = {
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "CeilToInt": lambda a: a,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": lambda *a: _fold(core.max_dim, a),
    "Min": lambda *a: _fold(core.min_dim, a),
    "Identity": lambda a: a,
}


def _fold(function: Any, parts: tuple[Any, ...]) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = function(result, part)
    return result


def _symbols(program: torch.export.ExportedProgram) -> set[sympy.Symbol]:
    """The symbols in the sizes of the inputs."""
    found: set[sympy.Symbol] = set()
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            for size in value.shape:
                if isinstance(size, torch.SymInt):
                    found |= size.node.expr.free_symbols
    return found


def names_of(
    program: torch.export.ExportedProgram, leaves: list[Any], named: list[Any]
) -> dict[sympy.Symbol, str]:
    """What the user has called symbols.

    leaves   the fake values of the program's inputs, in order.
    named    of each, a dict of a dim to the name that the user gave it, or None.
    """
    names: dict[sympy.Symbol, str] = {}
    for value, dims in zip(leaves, named, strict=False):
        for position, name in (dims or {}).items():
            size = value.shape[position] if isinstance(value, torch.Tensor) else None
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                names.setdefault(size.node.expr, name)
    return names


def named_dims(shapes: Any, arguments: Any) -> list[Any]:
    """Of each leaf of the arguments its dims' names, where `dynamic_shapes` (for them) has named ones."""
    if isinstance(arguments, torch.Tensor):
        return [_named(shapes)]
    if isinstance(arguments, dict):
        inner = shapes if isinstance(shapes, dict) else {}
        return [x for key, a in arguments.items() for x in named_dims(inner.get(key), a)]
    if isinstance(arguments, (tuple, list)):
        rest = shapes if isinstance(shapes, (tuple, list)) else [None] * len(arguments)
        return [x for s, a in zip(rest, arguments, strict=False) for x in named_dims(s, a)]
    return [None] * len(tree_leaves(arguments))


def _named(shapes: Any) -> dict[int, str]:
    pairs = (
        shapes.items()
        if isinstance(shapes, dict)
        else enumerate(shapes if isinstance(shapes, (tuple, list)) else ())
    )
    return {d: s.__name__ for d, s in pairs if getattr(s, "__name__", None) and d >= 0}


def _name(text: str) -> str:
    name = re.sub(r"\W", "_", text)
    return f"{name}_" if keyword.iskeyword(name) or name in ("mod", "max", "min") else name
