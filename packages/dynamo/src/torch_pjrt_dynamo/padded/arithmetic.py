"""Sizes as numbers in arithmetic (a mean's divisor): tensors, so that no program depends on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions

from torch_pjrt.extend.padding import Unsuited


def _added(*parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _multiplied(*parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total * part
    return total


def _double(x: Any) -> Any:
    return x.to(torch.float64) if isinstance(x, torch.Tensor) else float(x)


def _whole_part(a: Any, b: Any) -> Any:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        tensor = a if isinstance(a, torch.Tensor) else b
        a = a if isinstance(a, torch.Tensor) else torch.full_like(tensor, a)
        return torch.div(a, b, rounding_mode="floor")
    return a // b


# What PyTorch writes sizes with. Others are not known here.
_FUNCTIONS: dict[str, Any] = {
    "Add": _added,
    "Mul": _multiplied,
    "FloorDiv": _whole_part,
    "CleanDiv": _whole_part,
    "FloatTrueDiv": lambda a, b: _double(a) / _double(b),
    "IntTrueDiv": lambda a, b: _double(a) / _double(b),
    "ToFloat": _double,
    "OpaqueUnaryFn_sqrt": lambda x: _double(x) ** 0.5,
}
assert functions.FloorDiv.__name__ in _FUNCTIONS


def number(expr: sympy.Expr, counts: Mapping[sympy.Symbol, torch.Tensor]) -> Any:
    """The expression at true sizes: an int64 or float64 without dims; a number if it has no symbol."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if not expr.free_symbols:
        return float(expr)
    if expr.is_Symbol:
        return counts[expr]  # pyright: ignore[reportArgumentType]
    name = type(expr).__name__
    if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
        base = number(expr.base, counts)
        return _multiplied(*[base] * int(expr.exp))
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*(number(part, counts) for part in expr.args))  # pyright: ignore[reportArgumentType]
    raise Unsuited(f"it computes with `{expr}`")
