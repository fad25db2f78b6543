"""What a JAX program says of dims: equations as rows, loops and calls written out.

A step is one equation. Its row (`jaxpr_rows.py`) says which dims of what it takes and makes are one and the
same (as the letters of an einsum do), which dims it adds up, and which it needs whole. Dims that a row does
not name must be whole; those of an equation without a row all must.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_pjrt_spmd.autoshard.jaxpr_rows import RULES, Row, Shape


@dataclass(slots=True)
class Step:
    """An equation. Variables are numbers. runs: how often, in loops."""

    name: str
    taken: list[int | None]
    made: list[int]
    row: Row
    runs: int
    known: bool = True


@dataclass(slots=True)
class Steps:
    """A program: what its variables look like, its equations, and variables that are one (of loops)."""

    shapes: list[Shape] = field(default_factory=list)
    itemsizes: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)
    same: list[tuple[int, int, int]] = field(
        default_factory=list
    )  # a, b, dims that b lacks in front

    def variable(self, aval: Any) -> int:
        self.shapes.append(tuple(getattr(aval, "shape", ())))
        dtype = getattr(aval, "dtype", None)
        self.itemsizes.append(getattr(dtype, "itemsize", 4))
        return len(self.shapes) - 1


def steps_of(closed: Any) -> Steps:
    """Of a closed jaxpr."""
    found = Steps()
    found.inputs = [found.variable(v.aval) for v in closed.jaxpr.invars]
    env = dict(zip(map(id, closed.jaxpr.invars), found.inputs, strict=True))
    for v in closed.jaxpr.constvars:
        env[id(v)] = found.variable(v.aval)
    found.outputs = _walk(found, closed.jaxpr, env, 1)
    return found


def _walk(found: Steps, jaxpr: Any, env: dict[int, int], runs: int) -> list[int | None]:
    def read(v: Any) -> int | None:
        return None if hasattr(v, "val") else env[id(v)]

    for equation in jaxpr.eqns:
        name = equation.primitive.name
        taken = [read(v) for v in equation.invars]
        params = equation.params
        if name == "scan":
            results = _scan(found, params, taken, runs)
        elif name == "while":
            results = _while(found, params, taken, runs)
        elif name == "cond":
            results = _cond(found, params, taken, runs)
        elif name in _CALLS and (inner := _called(params)) is not None:
            results = _call(found, inner, taken, runs)
        else:
            made = [found.variable(v.aval) for v in equation.outvars]
            rule = RULES.get(name)
            row = rule(equation) if rule is not None else Row()
            found.steps.append(Step(name, taken, made, row, runs, rule is not None))
            results = made
        for v, number in zip(equation.outvars, results, strict=True):
            env[id(v)] = found.variable(v.aval) if number is None else number
    return [read(v) for v in jaxpr.outvars]


_CALLS = {
    *("pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"),
    *("custom_vjp_call_jaxpr", "remat", "remat2", "checkpoint", "custom_lin"),
}


def _called(params: dict[str, Any]) -> Any:
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = params.get(key)
        if hasattr(inner, "jaxpr"):
            return inner
        if hasattr(inner, "eqns"):
            return inner
    return None


def _call(found: Steps, inner: Any, taken: Sequence[int | None], runs: int) -> list[int | None]:
    jaxpr = getattr(inner, "jaxpr", inner)
    env = _constants(found, jaxpr)
    for v, number in zip(jaxpr.invars, taken, strict=True):
        env[id(v)] = found.variable(v.aval) if number is None else number
    return _walk(found, jaxpr, env, runs)


def _constants(found: Steps, jaxpr: Any) -> dict[int, int]:
    return {id(v): found.variable(v.aval) for v in jaxpr.constvars}


def _scan(
    found: Steps, params: dict[str, Any], taken: Sequence[int | None], runs: int
) -> list[int | None]:
    n_consts, n_carry, length = params["num_consts"], params["num_carry"], params["length"]
    jaxpr = params["jaxpr"].jaxpr
    env = _constants(found, jaxpr)
    inner: list[int] = []
    for i, (v, number) in enumerate(zip(jaxpr.invars, taken, strict=True)):
        new = found.variable(v.aval)
        env[id(v)] = new
        inner.append(new)
        if number is not None:
            found.same.append((number, new, 1 if i >= n_consts + n_carry else 0))
    results = _walk(found, jaxpr, env, runs * max(length, 1))
    made: list[int | None] = []
    for i, (v, number) in enumerate(zip(jaxpr.outvars, results, strict=True)):
        if i < n_carry:
            carry = inner[n_consts + i]
            if number is not None:
                found.same.append((carry, number, 0))
            made.append(carry)
            continue
        found.shapes.append((length, *getattr(v.aval, "shape", ())))
        found.itemsizes.append(v.aval.dtype.itemsize)
        stacked = len(found.shapes) - 1
        if number is not None:
            found.same.append((stacked, number, 1))
        made.append(stacked)
    return made


def _while(
    found: Steps, params: dict[str, Any], taken: Sequence[int | None], runs: int
) -> list[int | None]:
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    jaxpr = params["body_jaxpr"].jaxpr
    env = _constants(found, jaxpr)
    given = [*taken[n_cond : n_cond + n_body], *taken[n_cond + n_body :]]
    inner: list[int] = []
    for v, number in zip(jaxpr.invars, given, strict=True):
        new = found.variable(v.aval)
        env[id(v)] = new
        inner.append(new)
        if number is not None:
            found.same.append((number, new, 0))
    results = _walk(found, jaxpr, env, runs)
    carries = inner[n_body:]
    found.same += [(c, r, 0) for c, r in zip(carries, results, strict=True) if r is not None]
    return list(carries)


def _cond(
    found: Steps, params: dict[str, Any], taken: Sequence[int | None], runs: int
) -> list[int | None]:
    results: list[int | None] = []
    for branch in params["branches"]:
        of_branch = _call(found, branch, taken[1:], runs)
        if not results:
            results = of_branch
            continue
        for a, b in zip(results, of_branch, strict=True):
            if a is not None and b is not None:
                found.same.append((a, b, 0))
    return results
