"""A script: the operators of a table of rules on extreme numbers, beside the CPU.

Its argument is the table, `pointwise.binary`. It prints what differs, and to stderr which operator runs.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.testing._comparison import default_tolerances
from torch.utils._pytree import tree_leaves, tree_map

from torch_pjrt.lazy import attribute

INF, NAN = math.inf, math.nan
FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int32, torch.int64)


@dataclass(frozen=True)
class Apart:
    """Where an operator is not compared: where one of its arguments is such, by position.

    `of` None is all of them.
    """

    why: str
    left_out: Any  # of a tensor of arguments: which are left out
    of: int | None = None


def _tiny(x: torch.Tensor) -> torch.Tensor:
    return x.abs() <= torch.finfo(x.dtype).tiny if x.is_floating_point() else x != x


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs() >= torch.finfo(x.dtype).max if x.is_floating_point() else x != x


_QUOTIENT = "the CPU's vectors divide first: nan where the quotient overflows"
_VECTORS = [Apart(_QUOTIENT, _tiny, 1), Apart(_QUOTIENT, _largest, 0)]
_LARGEST = Apart("the CPU's series multiplies before it divides, and overflows", _largest, 0)
_NAN_IN_STEPS = Apart("the CPU goes on with nan, and gives 0, 1 or infinity", torch.isnan, 0)
_DEGREES = Apart("each step adds its rounding", lambda n: n.double().abs() > 20)

APART: dict[str, Apart | list[Apart]] = {
    "fmod": _VECTORS,
    "gelu": Apart("the CPU's vectors give nan of infinity", _largest, 0),
    "igamma": _LARGEST,
    "igammac": _LARGEST,
    "log_sigmoid_backward": Apart("the buffer is the CPU's own, and no argument", lambda x: x == x),
    "polygamma": Apart("the CPU divides by the sine of a rounded angle at poles", lambda x: x < 0),
    "remainder": _VECTORS,
    "softplus_backward": Apart("the CPU multiplies first, and overflows", _largest, 0),
}
# Where an element is the least number, or the divisor 0, the CPU's kernel may end the process or raise.
DIVISIONS = ("div", "floor_divide", "fmod", "lcm", "remainder")
# Results are drawn, or are derivatives outside of where a sample can lie: it is enough that they end.
ONLY_ENDS = ("random", "reparameterization")
# The CPU goes through all degrees, too.
HIGHEST = 1e5


def numbers(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        edges = [INF, -INF, NAN, info.max, info.min, info.tiny, info.eps, 1 - info.eps]
        steps = [2.0**24 + 2, -(2.0**24), 1e4, 1e10, -1e10, 1e18, -1e18, 1e30, -1e30]
        usual = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, 1e-3, 17.0, -33.0, 120.0]
        return torch.tensor([*usual, *steps, *edges], dtype=dtype)
    info = torch.iinfo(dtype)
    negative = [-1, -2, -3, -100] if info.min else []
    edges = [info.min, info.min + 1, info.max - 1, info.max]
    return torch.tensor(sorted({*edges, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100, *negative}), dtype=dtype)


def calls(op: Any, kind: str, dtype: torch.dtype) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Positional and named arguments: tensors that together have all combinations of the numbers."""
    name = op._schema.name.partition("::")[2]
    values = numbers(dtype)
    if name in DIVISIONS and dtype in INTEGERS:
        values = values[(values != torch.iinfo(dtype).min) & (values != 0)]
    if "polynomial" in name:
        no_degree = ~(values.double().abs() < 2**63) if dtype.is_floating_point else values < 0
        values = values[(values.double().abs() <= HIGHEST) | no_degree]
    tensors = [a for a in op._schema.arguments if "Tensor" in str(a.type)]
    values = values[::3] if len(tensors) > 2 else values
    n = len(tensors)
    grid = [
        values.reshape([-1 if i == j else 1 for j in range(n)]).expand([len(values)] * n).clone()
        for i in range(n)
    ]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for a in op._schema.arguments:
        given = grid.pop(0) if a in tensors else NUMBERS.get(str(a.type))
        if a in tensors or not a.has_default_value():
            if a.kwarg_only:
                kwargs[a.name] = given
            else:
                args.append(given)
    yield args, kwargs


# What refuses such arguments, or their dtype.
REFUSALS = (RuntimeError, TypeError, IndexError, ValueError)
NUMBERS = {
    "number": 2,
    "float": 0.5,
    "int": 1,
    "bool": True,
    "str": "none",
    "Optional[str]": "trunc",
}


def lines(kind: str) -> Iterator[str]:
    """What differs, in words."""
    for op in attribute(f"torch_pjrt.lowering.{kind}", "table"):
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            if dtype == torch.bool and kind == "pointwise.activation":
                continue
            for args, kwargs in calls(op, kind, dtype):
                print(op, dtype, file=sys.stderr, flush=True)
                there = tree_map(_moved, (args, kwargs))
                if kind in ONLY_ENDS:
                    with suppress(*REFUSALS):
                        _read(op(*there[0], **there[1]))
                    continue
                try:
                    expected = op(*args, **kwargs)
                except REFUSALS:
                    continue
                results = _read(op(*there[0], **there[1]))
                for ours, theirs in zip(results, tree_leaves(expected), strict=True):
                    if text := _difference(op, args, ours, theirs):
                        yield f"{op} of {dtype}: {text}"


def _read(results: Any) -> list[torch.Tensor]:
    return [x.cpu() for x in tree_leaves(results)]


def _moved(x: Any) -> Any:
    return x.to("pjrt") if isinstance(x, torch.Tensor) else x


def _difference(op: Any, args: list[Any], ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{ours.dtype} {list(ours.shape)}, not {theirs.dtype} {list(theirs.shape)}"
    if theirs.is_complex():
        differs = _differs(torch.view_as_real(ours), torch.view_as_real(theirs)).any(-1)
    else:
        differs = _differs(ours, theirs)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    for apart in _aparts(op):
        chosen = tensors if apart.of is None else tensors[apart.of : apart.of + 1]
        for x in chosen:
            if x.shape == differs.shape:
                differs &= ~apart.left_out(x)
    if not differs.any():
        return None
    at = tuple(differs.nonzero()[0].tolist())
    given = [x[at].item() if x.shape == differs.shape else x for x in tensors]
    return f"{int(differs.sum())} differ, as {ours[at].item()}, not {theirs[at].item()}, of {given}"


def _differs(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    if not theirs.is_floating_point():
        return ours != theirs
    rtol, atol = default_tolerances(theirs.dtype)
    # Of special functions some digits go with the size of their arguments, on both sides.
    return ~torch.isclose(ours, theirs, rtol=8 * rtol, atol=atol, equal_nan=True)


def _aparts(op: Any) -> list[Apart]:
    name = op._schema.name.partition("::")[2].removeprefix("special_").removeprefix("shifted_")
    rows = [APART[key] for key in (name, f"{name}.{op._overloadname}") if key in APART]
    found = [apart for row in rows for apart in (row if isinstance(row, list) else [row])]
    if "polynomial" in name:
        at = {"x_scalar": [0], "n_scalar": []}.get(op._overloadname, [1])
        found += [_NAN_IN_STEPS, *(replace(_DEGREES, of=i) for i in at)]
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in lines(sys.argv[1]):
        print(line, flush=True)
