"""A graph of `torch.export` as one JAX function, with sizes that may be symbolic.

Each node's rule is called in turn: one of `views.py` and `rules.py`, else core's. Sizes of results
come from PyTorch's own expressions for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.extend.core import InconclusiveDimensionOperation
from torch._ops import HigherOrderOperator
from torch.fx.node import map_arg

from torch_pjrt.errors import LoweringError, MissingLowering
from torch_pjrt.extend import PRECISIONS, precision_in_force
from torch_pjrt.plugin import LoweringTable, aten, client
from torch_pjrt.plugin.rules import core_rules, to_jax
from torch_pjrt_quant.exporting import views
from torch_pjrt_quant.exporting.rule_table import RANDOM, RULES, ResultSpec, is_, number_of
from torch_pjrt_quant.exporting.rules import SYMBOLIC
from torch_pjrt_quant.exporting.sizes import Sizes

Array = jax.Array

# What checks, and computes nothing.
CHECKS = frozenset(
    op
    for op in (
        aten._assert_scalar.default,
        aten._assert_async.msg,
        aten._assert_async.default,
        aten._assert_tensor_metadata.default,
        aten._linalg_check_errors.default,
        aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default,
        getattr(torch, "_check", None),
    )
)


def table() -> LoweringTable:
    """Core's rules for every device, and those that packages have added for operators of their own."""
    own = LoweringTable("own operators")
    core = core_rules()
    for op, row in client().lowerings.items():
        if op not in core and getattr(op, "namespace", "aten") not in ("aten", "prims"):
            own.add(op, row.rule, static=row.static, random=row.random)
    return core.overlaid(own)


def without_checks(graph: torch.fx.GraphModule) -> None:
    """The graph without assertions, and without what only they read."""
    for module in graph.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in reversed(list(module.graph.nodes)):
            if node.target in CHECKS or (
                not node.users and node.op == "call_function" and node.target in SYMBOLIC
            ):
                node.replace_all_uses_with(None)  # type: ignore[arg-type]
                module.graph.erase_node(node)
        module.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output"))


@dataclass(slots=True, eq=False)
class Interpreter:
    """Calls the rules of a graph's nodes.

    rules    of operators, from core.
    sizes    the program's symbols.
    key      the PRNG key that random operators fold their position into, if there is one.
    draws    how many there were.
    """

    rules: LoweringTable
    sizes: Sizes
    key: Array | None = None
    draws: int = 0
    shapes: dict[Any, Any] = field(default_factory=dict)

    def run(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """The results of the graph for these arguments: arrays, dims, numbers."""
        values: dict[torch.fx.Node, Any] = {}
        given = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = _attribute(module, str(node.target))
            elif node.op == "output":
                results = map_arg(node.args[0], values.__getitem__)
                return list(results) if isinstance(results, (list, tuple)) else [results]
            else:
                values[node] = self._named(node, values)
        raise AssertionError("a graph without an output")

    def _named(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        """The results of a node; an error says which node it is, and where the user's program called it."""
        try:
            return self._results(node, values)
        except _Located:
            raise
        except Exception as error:
            raise _located(node, error) from error

    def _results(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        target: Any = node.target
        meta = node.meta.get("val")
        if isinstance(meta, (torch.SymInt, int)) and not isinstance(meta, bool):
            return self.sizes.dim(meta)
        if isinstance(target, HigherOrderOperator):
            return self._flow(target, args, kwargs)
        if target in SYMBOLIC:
            return SYMBOLIC[target](*args, **kwargs)
        if target is aten.as_strided.default:
            return self._settled(self._strided(node, values), meta)
        if target in RULES:
            with _precision(node):
                result = RULES[target](self._look(meta), *args, **_given(kwargs))
        elif target in RANDOM:
            result = RANDOM[target](self._look(meta), self._next_key(), *args, **_given(kwargs))
        else:
            result = self._by_core(node, target, args, kwargs)
        if isinstance(meta, (list, tuple)) and isinstance(result, (list, tuple)):
            # Of a result that nothing reads, a rule may give anything.
            read = [user.args[1] for user in node.users if user.target is operator.getitem]
            meta = [m if n in read else None for n, m in enumerate(meta)]
        return self._settled(result, meta)

    def _by_core(self, node: torch.fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
        row = self.rules.get(target)
        if row is None:
            raise MissingLowering(
                f"`{target}` has no rule, and PyTorch has no decomposition of it."
            )
        filled = list(_numbers(target, args))
        if row.random is True or (
            isinstance(row.random, str) and row.draws(_by_name(target, args, kwargs))
        ):
            filled.insert(0, self._next_key())
        elif row.random:
            filled.insert(0, None)
        with _precision(node):
            return row.called(target, filled, _given(kwargs))

    def _strided(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Array:
        """Elements of a tensor in memory: of the argument, or of what it is a view of."""
        named = _by_name(node.target, node.args, node.kwargs)
        source: torch.fx.Node = named["self"]
        first = named["storage_offset"]
        if first is None:
            first = source.meta["val"].storage_offset()
        stride, first = map_arg((named["stride"], first), values.__getitem__)
        shape = self.sizes.shape(node.meta["val"].shape)
        for owner in views.owners(source):
            found = views.strided(owner.meta["val"], values[owner], shape, stride, first)
            if found is not None:
                return found
        raise LoweringError(
            f"it reads memory beside `{source.name}`, of which a program has the elements alone",
            hint="give the whole tensor as the argument, and take the view of it in the module",
        )

    def _next_key(self) -> Array:
        if self.key is None:
            raise LoweringError("a random number within a body of control flow")
        self.draws += 1
        return jax.random.fold_in(self.key, self.draws)

    def _look(self, meta: Any) -> Any:
        if isinstance(meta, (list, tuple)):
            return [self._look(m) for m in meta]
        if isinstance(meta, torch.Tensor):
            return ResultSpec(self.sizes.shape(meta.shape), to_jax(meta.dtype))
        return meta

    def _settled(self, result: Any, meta: Any) -> Any:
        """The result in PyTorch's dtype; its sizes are checked against PyTorch's."""
        if isinstance(meta, (list, tuple)):
            several = result if isinstance(result, (list, tuple)) else [result]
            several = (
                [r for r in several if not isinstance(r, int)]
                if len(several) > len(meta)
                else several
            )
            return [self._settled(r, m) for r, m in zip(several, meta, strict=False)]
        if not isinstance(meta, torch.Tensor) or result is None:
            return result
        array = jnp.asarray(result)
        shape = self.sizes.shape(meta.shape)
        if any(is_(n, 0) for n in shape):  # rules may give what PyTorch leaves empty
            return jnp.zeros(shape, to_jax(meta.dtype))
        known = [(a, b) for a, b in zip(array.shape, shape, strict=False) if _both_known(a, b)]
        if array.ndim != len(shape) or any(a != b for a, b in known):
            raise LoweringError(f"its rule gives the shape {array.shape}, and PyTorch {shape}")
        return lax.convert_element_type(array, to_jax(meta.dtype))

    def _flow(self, op: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
        flow = FLOWS.get(op.name())
        if flow is None:
            raise MissingLowering(f"`{op.name()}` has no rule for exported programs.")
        return flow(self, *args, **kwargs)

    def within(self) -> Interpreter:
        """For a body of control flow, which draws nothing."""
        return Interpreter(self.rules, self.sizes)


class _Located(LoweringError):
    """An error that says of which node it is."""


def _located(node: torch.fx.Node, error: Exception) -> _Located:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    hint = getattr(error, "hint", None)
    if isinstance(error, InconclusiveDimensionOperation):
        hint = (
            "say more of the sizes: the least and greatest of a `Dim`, one size as an expression of another "
            "(`2 * batch`), or a size that is fixed (docs/export.md)"
        )
    return _Located(
        f"`{node.target}` cannot be exported: {first.removeprefix('LoweringError: ')}",
        saw=f"node `{node.name}`" + (f", called at {frames[-1]}" if frames else ""),
        hint=hint,
    )


_NAMES_LEFT_OUT = ("layout", "device", "pin_memory", "memory_format", "non_blocking", "generator")


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k not in _NAMES_LEFT_OUT}


def _numbers(op: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Dims that a rule takes as Python's numbers, not as sizes, as weakly typed arrays."""
    schema = getattr(op, "_schema", None)
    if schema is None:
        return args
    kinds = [str(a.type) for a in schema.arguments]
    return [
        number_of(a)
        if _is_dim(a) and kind in ("number", "Tensor", "float", "Optional[number]")
        else a
        for a, kind in zip(args, kinds, strict=False)
    ]


def _both_known(a: Any, b: Any) -> bool:
    return isinstance(a, int) and isinstance(b, int)


def _is_dim(x: Any) -> bool:
    return not isinstance(x, (int, float, bool, jax.Array)) and hasattr(x, "dimension_as_value")


def _by_name(op: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    named = {a.name: a.default_value for a in op._schema.arguments}
    named.update(zip(named, args, strict=False))
    return {**named, **kwargs}


def _precision(node: torch.fx.Node) -> AbstractContextManager[Any]:
    """Products of float32 are as exact as PyTorch is told to compute them."""
    inputs = (n.meta.get("val") for n in node.all_input_nodes)
    if any(isinstance(v, torch.Tensor) and v.dtype in _WIDE for v in inputs):
        return jax.default_matmul_precision(PRECISIONS[precision_in_force()])
    return nullcontext()


_WIDE = (torch.float32, torch.complex64)


def _attribute(module: torch.fx.GraphModule, target: str) -> Any:
    found: Any = module
    for part in target.split("."):
        found = getattr(found, part)
    return found


def _cond(
    i: Interpreter, predicate: Any, yes: Any, no: Any, operands: Sequence[Any] = ()
) -> list[Any]:
    def branch(graph: torch.fx.GraphModule) -> Callable[..., Any]:
        return lambda *arrays: [jnp.asarray(r) for r in i.within().run(graph, arrays)]

    return list(lax.cond(jnp.reshape(predicate, ()), branch(yes), branch(no), *operands))


def _while(
    i: Interpreter, condition: Any, body: Any, carried: Sequence[Any], others: Sequence[Any] = ()
) -> list[Any]:
    def goes_on(values: Any) -> Array:
        return jnp.reshape(i.within().run(condition, [*values, *others])[0], ())

    def step(values: Any) -> Any:
        return tuple(map(jnp.asarray, i.within().run(body, [*values, *others])))

    return list(lax.while_loop(goes_on, step, tuple(map(jnp.asarray, carried))))


def _scan(
    i: Interpreter, body: Any, initial: Sequence[Any], xs: Sequence[Any], others: Sequence[Any] = ()
) -> list[Any]:
    def step(carry: Any, x: Any) -> Any:
        results = i.within().run(body, [*carry, *x, *others])
        return tuple(results[: len(carry)]), tuple(results[len(carry) :])

    carry, stacked = lax.scan(step, tuple(map(jnp.asarray, initial)), tuple(xs))
    return [*carry, *stacked]


def _map(i: Interpreter, body: Any, xs: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
    return list(lax.map(lambda x: tuple(i.within().run(body, [*x, *others])), tuple(xs)))


def _inlined(i: Interpreter, *args: Any, **_: Any) -> Any:
    """A block under a switch that matters to gradients alone: (..., body, operand, ...)."""
    position = next(n for n, a in enumerate(args) if isinstance(a, torch.fx.GraphModule))
    return i.run(args[position], args[position + 1 :])


def _with_effects(i: Interpreter, token: Any, op: Any, *_: Any, **__: Any) -> tuple[None, None]:
    """A token, which orders effects in PyTorch's graphs, and a result. Checks are the effects that may go."""
    if op not in CHECKS:
        raise MissingLowering(
            f"`{op}` has an effect beside its results, which no program can have."
        )
    return None, None


FLOWS: dict[str, Callable[..., Any]] = {
    "cond": _cond,
    "while_loop": _while,
    "scan": _scan,
    "map_impl": _map,
    "wrap_with_set_grad_enabled": _inlined,
    "wrap_with_autocast": _inlined,
    "with_effects": _with_effects,
}
