"""What reports say of kernels: how each call is computed, and what spoke against better ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import jax

from torch_pjrt.extend import FunctionOp, Program, Table, add_report_tables, jax_dtype
from torch_pjrt.plugin import Graph, GraphOp, LoopOp, Signature, Slot, aten, client, rules
from torch_pjrt_kernels.attention.choice import AT_ONCE, BLOCKS, Way
from torch_pjrt_kernels.attention.form import Sizes
from torch_pjrt_kernels.attention.lowerings import problem_of, way_of
from torch_pjrt_kernels.flex.call import attended
from torch_pjrt_kernels.flex.operator import same

FORWARD = aten._scaled_dot_product_fused_attention_overrideable.default
_Row = tuple[tuple[int, ...], tuple[int, ...], Way]
_HEADINGS = ("program", "calls", "queries", "keys", "computed", "why not otherwise")


def tables(programs: Sequence[Any]) -> list[Table]:
    """Attention, of programs that have some."""
    rows = []
    for program in programs:
        if isinstance(program, Program):
            counts = Counter(_calls(program.recorded))
            found = [(n, *_row(s)) for s, n in counts.items()]
            counts = Counter(_flex_rows(program.recorded))
            found += [(n, *row) for row, n in counts.items()]
            counts = Counter(_own_rows(program.recorded))
            found += [(n, *row) for row, n in counts.items()]
            rows += [(program.compilation.number, *row) for row in found]
    return [Table("Attention and rotary positions", _HEADINGS, rows)]


def register() -> None:
    """Have reports say it."""
    add_report_tables(tables)


def way_of_signature(signature: Signature) -> Way:
    """How calls of attention with this signature are computed on the device at work."""
    return _way(_call(signature))


def _nodes(graph: Graph) -> Iterator[Any]:
    for node in graph.nodes:
        if isinstance(node.op, GraphOp):
            yield from _nodes(node.op.graph)
        elif isinstance(node.op, LoopOp):
            yield from _nodes(node.op.body)
        else:
            yield node


def _calls(graph: Graph) -> Iterator[Signature]:
    return (node.signature for node in _nodes(graph) if node.op is FORWARD)


def _flex_rows(graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """The forwards of `flex_attention`, which are nodes that know their sizes."""
    for node in _nodes(graph):
        op = node.op
        if not isinstance(op, FunctionOp) or op.of is None:
            continue
        if op.compute is attended:
            call = op.of[0]
            sizes, way, why = Sizes(*call.sizes), BLOCKS, ""
            b, h = node.signature.specs[0].shape[:2]
            of = (b, h, sizes.queries, b, sizes.key_heads, sizes.keys)
        elif op.compute is same:
            of, why = op.of
            way, why = AT_ONCE, f"{BLOCKS}: {why}"
        else:
            continue
        queries, keys = (" x ".join(map(str, x)) for x in (of[:3], of[3:]))
        yield queries, keys, f"flex_attention, {way}", why


def _own_rows(graph: Graph) -> Iterator[tuple[str, str, str, str]]:
    """The package's own functions, where they were used."""
    for node in _nodes(graph):
        describe = _DESCRIBED.get(str(node.op))
        if describe is not None:
            queries, keys, way = describe(*_arguments(node.signature))
            name = str(node.op).split(".")[1]
            first, second = (" x ".join(map(str, x)) for x in (queries, keys))
            yield first, second, f"{_FUNCTIONS.get(name, name)}, {way.name}", _against(way)


# Their operators, once their modules are there: shapes of queries and keys, and the way, from the arguments.


def _of_flash(query: Any, key: Any, *rest: Any) -> _Row:
    way = import_module("torch_pjrt_kernels.attention.operator").way_of(query, key, *rest)
    return query.shape[:3], key.shape[:3], way


def _of_pages(query: Any, key_pages: Any, value_pages: Any, table: Any, *rest: Any) -> _Row:
    way = import_module("torch_pjrt_kernels.paged.operator").way_of(
        query, key_pages, value_pages, table, *rest
    )
    heads = key_pages.shape[2] // (2 if value_pages is None else 1)
    keys = (table.shape[0], heads, table.shape[1] * key_pages.shape[1])
    return (query.shape[0], query.shape[2], query.shape[1]), keys, way


def _of_ragged(query: Any, key_pages: Any, value_pages: Any, table: Any, *rest: Any) -> _Row:
    way = import_module("torch_pjrt_kernels.paged.ragged").way_of(
        query, key_pages, value_pages, *rest
    )
    heads = key_pages.shape[2] // (2 if value_pages is None else 1)
    keys = (table.shape[0], heads, table.shape[1] * key_pages.shape[1])
    return (1, query.shape[1], query.shape[0]), keys, way


def _of_rotary(input: Any, cos: Any, *rest: Any) -> _Row:
    way = import_module("torch_pjrt_kernels.rotary.operator").way_of(input, cos, *rest)
    return input.shape[:3], (), way


_DESCRIBED: dict[str, Callable[..., _Row]] = {
    "torch_pjrt_kernels.attention.default": _of_flash,
    "torch_pjrt_kernels.paged_attention.default": _of_pages,
    "torch_pjrt_kernels.ragged_paged_attention.default": _of_ragged,
    "torch_pjrt_kernels.rotary.default": _of_rotary,
}
_FUNCTIONS = {"attention": "flash_attention"}


def _arguments(signature: Signature) -> list[Any]:
    """The arguments with shapes and dtypes in the place of arrays: one and the same for the same array."""
    known: dict[int, Any] = {}

    def like(x: Any) -> Any:
        if not isinstance(x, Slot):
            return x
        spec = signature.specs[x.index]
        return known.setdefault(
            x.index, jax.ShapeDtypeStruct(tuple(spec.shape), jax_dtype(spec.dtype))
        )

    return [like(x) for x in signature.args]


def _against(way: Way) -> str:
    return "; ".join(f"{name}: {objection}" for name, objection in way.objections.items())


def _call(signature: Signature) -> rules.Attention:
    """The call with shapes and dtypes in the place of arrays."""

    def like(x: Any) -> Any:
        if not isinstance(x, Slot):
            return x
        spec = signature.specs[x.index]
        return jax.ShapeDtypeStruct(tuple(spec.shape), jax_dtype(spec.dtype))

    return rules.Attention(
        None, *map(like, signature.args), **{k: like(v) for k, v in signature.kwargs.items()}
    )


def _way(call: rules.Attention) -> Way:
    rule = client().lowerings[FORWARD].rule
    beneath = rule.args[0] if isinstance(rule, partial) else rule
    return way_of(call, beneath)


def _row(signature: Signature) -> tuple[Any, ...]:
    call = _call(signature)
    problem, way = problem_of(call), _way(call)
    queries = f"{problem.batch} x {problem.heads} x {problem.queries}"
    keys = f"{problem.batch} x {problem.key_heads} x {problem.keys}"
    return queries, keys, way.name, _against(way)
