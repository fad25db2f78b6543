"""A compiled graph whose sizes vary: a call pads them up to buckets, so that one program serves many.

How a graph is done on padded tensors is in `padded/`. Where that is not provably the same, the graph is an
ordinary one, with a program for each size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.fx import GraphModule

from torch_pjrt import config
from torch_pjrt.extend import Value, buffer_of, cut, state, value_of
from torch_pjrt.extend.padding import (
    Count,
    Dim,
    Names,
    PaddedBuffer,
    Parts,
    Unsuited,
    has_padding,
    packed,
    padded_buffer_of,
    padded_tensor,
    padded_view,
    recent,
    resized,
    sizes_are_exact,
    with_count,
)
from torch_pjrt.plugin import TensorSpec, contiguous_spec
from torch_pjrt_dynamo.bucket_sizes import Buckets
from torch_pjrt_dynamo.compiled import CompiledGraph, called
from torch_pjrt_dynamo.operators import CannotRecord
from torch_pjrt_dynamo.padded import shapes_of_graphs
from torch_pjrt_dynamo.padded.dims import capacity_of, dims_of, expression, monomial
from torch_pjrt_dynamo.padded.run import PaddedRun
from torch_pjrt_dynamo.padding import count_value, padded
from torch_pjrt_dynamo.recorded_graph import InputSpec, RecordedGraph
from torch_pjrt_dynamo.recording import record

Symbol = sympy.Symbol
_REMEMBERED = 4096  # sizes of calls


def varies(module: GraphModule) -> bool:
    """Whether some size of what the graph is given varies."""
    return any(_symbols_of(n.meta.get("val")) for n in module.graph.find_nodes(op="placeholder"))


def _symbols_of(value: Any) -> set[Symbol]:
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return set(value.node.expr.free_symbols)
    if not isinstance(value, torch.Tensor):
        return set()
    return {s for n in value.shape for s in expression(n).free_symbols}  # pyright: ignore[reportReturnType]


@dataclass(slots=True, eq=False)
class BucketPlan:
    """What a call with some sizes is padded to.

    there       of each symbol its size.
    capacities  what it is padded to; `key` is that as a tuple.
    counts      of each symbol its size, on the device.
    parts       of factors, their capacity and how many elements there are.
    numbers     what results are that are numbers.
    """

    there: dict[Symbol, int]
    capacities: dict[Symbol, int]
    key: tuple[int, ...]
    counts: list[Value]
    parts: dict[Any, tuple[int, int]] = field(default_factory=dict)
    numbers: dict[Any, Any] = field(default_factory=dict)

    def part(self, factor: Any) -> tuple[int, int]:
        if isinstance(factor, int):
            return factor, factor
        found = self.parts.get(factor)
        if found is None:
            found = capacity_of(factor, self.capacities), capacity_of(factor, self.there)
            self.parts[factor] = found
        return found

    def parts_of(self, dims: Sequence[Dim]) -> tuple[Parts, ...]:
        return tuple(tuple(map(self.part, dim)) for dim in dims)

    def number(self, expr: sympy.Expr) -> Any:
        found = self.numbers.get(expr)
        if found is None:
            value = expr.subs(self.there)  # pyright: ignore[reportCallIssue, reportArgumentType]
            found = self.numbers[expr] = int(value) if value.is_integer else float(value)
        return found


@dataclass(slots=True)
class Padded:
    """What was recorded for some capacities.

    padded   (position, dims): results that are padded.
    numbers  (position, expression): results that are numbers made of sizes.
    """

    recorded: RecordedGraph
    padded: list[tuple[int, tuple[Dim, ...]]]
    numbers: list[tuple[int, sympy.Expr]]


class BucketedGraph(CompiledGraph):
    """A compiled graph whose sizes vary; done as its base does where there is no bucket or no proof.

    n_users   how many results are the user's; those after them only compiled graphs see.
    """

    def __init__(
        self,
        module: GraphModule,
        name: str,
        *,
        apart: bool = False,
        precision: str | None = None,
        buckets: Buckets,
        n_users: int,
    ) -> None:
        super().__init__(module, name, apart=apart, precision=precision)
        self.buckets = buckets
        self.n_users = n_users
        self.padded: dict[Any, Padded] = {}
        self._plans: dict[tuple[int, ...], BucketPlan | None] = {}
        self._traced = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
        self._sources = _sources(self._traced)
        self.symbols = sorted(self._sources, key=str)
        self.report = shapes_of_graphs.Shapes(name, [str(s) for s in self.symbols])
        shapes_of_graphs.known.append(self.report)
        self._dims = list(map(self._dims_of, self._traced))
        self._unpadded = [i for i, known in enumerate(self._dims) if known is None]
        self._numbers = [i for i in self._unpadded if _symbols_of(self._traced[i])]
        self._positions = [self._sources[s] for s in self.symbols]
        # Arguments of whose dims only the call tells in which order their factors are.
        self._unclear = [i for i, known in enumerate(self._dims) if known and None in known[0]]
        if self._sees_storage:
            self.refuse("it looks at the storage of a tensor")
        elif {s for value in self._traced for s in _symbols_of(value)} - set(self.symbols):
            self.refuse("a size is known only as a part of another one")

    def _dims_of(self, value: Any) -> Any:
        """Of an argument: None if it has no padding; else, of each of its dims, that or its symbolic size."""
        if not isinstance(value, torch.Tensor) or not _symbols_of(value):
            return None
        try:
            dims = dims_of(value.shape)
        except Unsuited as error:
            self.refuse(str(error))
            return None
        return [dim if len(dim) < 2 else None for dim in dims], list(value.shape)

    def refuse(self, reason: str) -> None:
        """Have a program for each size from now on."""
        self.report.reason = self.report.reason or reason

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._parts is not None or self.report.reason is not None or sizes_are_exact():
            return super().__call__(args)
        there = tuple(args[i] if d is None else args[i].shape[d] for i, d in self._positions)
        plan = self._plans[there] if there in self._plans else self._planned(there)
        if plan is None:
            self.report.exact.add(there)
            return super().__call__(args)
        tape = state.tape
        if tape.size > config.tape_limit:
            cut(tape)
        try:
            values, key, dims = self._with_padding(args, plan)
        except Unsuited:  # of this call
            self.report.exact.add(there)
            return super().__call__(args)
        try:
            found = self.padded.get(key)
            if found is None:
                found = self.padded[key] = self._recorded(key, dims, plan)
        except Unsuited as error:
            self.refuse(str(error))
            return super().__call__(args)
        except CannotRecord as error:
            self.cut_at(error)
            return super().__call__(args)
        values += plan.counts
        results = called(found.recorded, args, values)
        for position, expr in found.numbers:
            results[position] = plan.number(expr)
        for position, of_result in found.padded:
            results[position] = _true(
                results[position], of_result, plan, is_users=position < self.n_users
            )
        return results

    def part(self, module: GraphModule, name: str) -> CompiledGraph:
        if not varies(module):
            return super().part(module, name)
        n = len(next(iter(reversed(module.graph.nodes))).args[0])
        how: Any = {"apart": self.apart, "precision": self.precision}
        return BucketedGraph(module, name, buckets=self.buckets, n_users=n, **how)

    def _planned(self, there: tuple[int, ...]) -> BucketPlan | None:
        capacities = list(map(self.buckets.capacity_for, there))
        plan = None
        if None not in capacities:
            known: Any = dict(zip(self.symbols, capacities, strict=True))
            sizes = dict(zip(self.symbols, there, strict=True))
            key: Any = tuple(capacities)
            plan = BucketPlan(sizes, known, key, list(map(count_value, there)))
        if len(self._plans) >= _REMEMBERED:
            self._plans.clear()
        self._plans[there] = plan
        return plan

    def _with_padding(self, args: list[Any], plan: BucketPlan) -> tuple[list[Any], Any, list[Any]]:
        """The arguments' values, what they look like, and the dims of those that are padded."""
        values, specs = self._seen_unpadded(args)
        dims: list[Any] = [None] * len(args)
        for i, known in enumerate(self._dims):
            if known is not None:
                of_dims, shape = known
                values[i], specs[i], dims[i] = _padded_argument(args[i], of_dims, shape, plan)
        return values, (plan.key, *specs, *[dims[i] for i in self._unclear]), dims

    def _seen_unpadded(self, args: list[Any]) -> tuple[list[Any], list[Any]]:
        found, key = self._looked_at([args[i] for i in self._unpadded])
        values: list[Any] = [None] * len(args)
        specs: list[Any] = [None] * len(args)
        for i, value, spec in zip(self._unpadded, found, key, strict=True):
            values[i], specs[i] = value, spec
        for i in self._numbers:
            specs[i] = int, 0  # which the symbol stands for
        return values, specs

    def _recorded(self, key: Any, dims: list[Any], plan: BucketPlan) -> Padded:
        specs = key[1 : 1 + len(dims)]
        arguments = [InputSpec(x) if x.__class__ is TensorSpec else x[1] for x in specs]
        arguments += [InputSpec(contiguous_spec((), torch.int64))] * len(self.symbols)
        run = PaddedRun(dims, self.symbols, plan.capacities, self.n_users)
        how: Any = {"apart": self.apart, "precision": self.precision}
        recorded = record(self.module, arguments, self.name, run=run, **how)
        _check(recorded, dims, run.results)
        self.report.buckets.add(plan.key)
        fresh = {position for position, _, _ in recorded.fresh}
        padded_ = [(p, r) for p, r in enumerate(run.results) if isinstance(r, tuple) and p in fresh]
        numbers = [(p, r) for p, r in enumerate(run.results) if isinstance(r, sympy.Expr)]
        return Padded(recorded, padded_, numbers)


def _sources(traced: Sequence[Any]) -> dict[Symbol, tuple[int, int | None]]:
    """Where a call finds the size that a symbol stands for: an argument, or a dim of one."""
    found: dict[Symbol, tuple[int, int | None]] = {}
    for i, value in enumerate(traced):
        if isinstance(value, torch.SymInt) and value.node.expr.is_Symbol:
            found.setdefault(value.node.expr, (i, None))
        elif isinstance(value, torch.Tensor):
            for d, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    found.setdefault(size.node.expr, (i, d))
    return found


def _check(recorded: RecordedGraph, dims: Sequence[Any], results: Sequence[Any]) -> None:
    """Raises `Unsuited` where memory with padding would be shared or written to."""
    are_padded = {i for i, d in enumerate(dims) if d is not None}
    if any(argument in are_padded for argument, *_ in recorded.written):
        raise Unsuited("it writes to an argument whose size varies")
    if any(argument in are_padded for _, argument, *_ in recorded.views):
        raise Unsuited("it gives a view of an argument whose size varies")
    for position, *_ in [*recorded.views, *recorded.shared]:
        if isinstance(results[position], tuple):
            raise Unsuited("results whose size varies share memory")


def _padded_argument(
    arg: torch.Tensor, known: list[Dim | None], shape: list[Any], plan: BucketPlan
) -> tuple[Value, TensorSpec, tuple[Dim, ...]]:
    """The value of an argument with padding, what it looks like, and its dims."""
    if arg.device.type != "pjrt":
        arg = arg.to("pjrt")
    buffer = padded_buffer_of(arg)
    if buffer is not None and buffer.names is not None:
        matched = _matched(buffer.parts, buffer.names, shape, plan)
        if matched is not None:
            return buffer.padded, resized(buffer.spec, buffer.padded.spec.shape), matched
    if None in known:
        raise Unsuited("an argument's dim is made of several that vary")
    dims: tuple[Dim, ...] = tuple(known)  # pyright: ignore[reportAssignmentType]
    capacities = tuple(
        math.prod(capacity for capacity, _ in parts) for parts in plan.parts_of(dims)
    )
    view = padded_view(arg)
    if view is not None and view.spec.shape == capacities and _is_only(dims, view.dim):
        spec = view.spec if view.spec.dense else contiguous_spec(capacities, arg.dtype)
        return view.value, spec, dims
    if arg.is_conj() or arg.is_neg():
        arg = arg.resolve_conj().resolve_neg()
    return *padded(arg, capacities), dims


def _is_only(dims: Sequence[Dim], d: int) -> bool:
    """Whether this dim is the only one with padding."""
    return [has_padding(dim) for dim in dims] == [i == d for i in range(len(dims))]


def _matched(
    parts: Sequence[Parts], names: Names, shape: Sequence[Any], plan: BucketPlan
) -> tuple[Dim, ...] | None:
    """The factors of dims that another graph made of these parts; None if others are wanted.

    Names say which of several sizes that are equal now is meant, where the other graph is this one's forward.
    """
    dims: list[Dim] = []
    for of_dim, named, size in zip(parts, names, shape, strict=True):
        number, atoms = monomial(expression(size))
        left = list(atoms)
        dim: list[Any] = []
        for part, name in zip(of_dim, named, strict=True):
            fitting = [a for a in left if plan.part(a) == part]
            atom = name if name in fitting else fitting[0] if fitting else None
            if atom is not None:
                left.remove(atom)
                dim.append(atom)
            elif part[0] == part[1] and number % part[0] == 0:
                number //= part[0]
                dim.append(part[0])
            else:
                return None
        if left or number != 1:
            return None
        dims.append(packed(dim))
    return tuple(dims)


def _true(
    result: torch.Tensor, dims: tuple[Dim, ...], plan: BucketPlan, *, is_users: bool
) -> torch.Tensor:
    """A result of the padded size as a tensor of the true size."""
    parts = plan.parts_of(dims)
    with_padding = [d for d, dim in enumerate(dims) if has_padding(dim)]
    if len(with_padding) == 1 and len(dims[with_padding[0]]) == 1:
        [[(capacity, n)]] = [parts[d] for d in with_padding]
        count = Count(n, count_value(n), capacity)
        if is_users:
            recent.add(count)
        return with_count(result, with_padding[0], count)
    value, spec = value_of(result), buffer_of(result).spec
    return padded_tensor(PaddedBuffer(value, spec, parts, names=dims))
