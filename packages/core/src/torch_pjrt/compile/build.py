"""A graph as one JAX function: each node's rule called in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.compile.loops import Scope, run_loop
from torch_pjrt.compile.precision import in_force, precision_of
from torch_pjrt.compile.stacks import elements, stacked
from torch_pjrt.errors import LoweringError, MissingLowering, WrongLowering
from torch_pjrt.graph.graph import Draw, Graph, Node, Number
from torch_pjrt.graph.loop import LoopOp
from torch_pjrt.graph.signature import (
    ADDED_AT,
    OPTIMIZATION_BARRIER,
    OUTSIDE,
    READ,
    WRITE,
    FunctionOp,
    NumberSlot,
    Signature,
    Slot,
    filled,
)
from torch_pjrt.graph.stacks import ELEMENTS, STACK
from torch_pjrt.graph.tensor_spec import TensorSpec
from torch_pjrt.lowering import bounds, complex32, window
from torch_pjrt.lowering.host_memory import Sharding, lies_on_host, on_chips
from torch_pjrt.lowering.promote import with_default_dtype
from torch_pjrt.lowering.slice import added_at
from torch_pjrt.lowering.table import Lowering, LoweringTable
from torch_pjrt.observe.lines import are_in_programs
from torch_pjrt.observe.xla_metadata import at_line

if TYPE_CHECKING:
    from torch_pjrt.compile.numbers import NumberPlan

Array = jax.Array

INTERNAL = {
    READ: lambda node, base, offset=None: _read(node.signature, base, offset),
    WRITE: lambda node, base, new, offset=None: _write(node.signature, base, new, offset),
    ADDED_AT: lambda node, x, new, position: added_at(x, new, node.signature.args[2], position),
    OPTIMIZATION_BARRIER: lambda node, x: lax.optimization_barrier(x),
    OUTSIDE: lambda node, *values: bounds.outside(
        *(values[a.index] if isinstance(a, Slot) else a for a in node.signature.args)
    ),
    STACK: lambda node, *values: stacked(node, values),
}


def function_of(
    graph: Graph,
    table: LoweringTable,
    plan: NumberPlan,
    n_seedings: int,
    results: Sequence[Sharding | None] | None = None,
) -> Callable[..., tuple[Array, ...]]:
    """The function `f(*inputs, [ints], [floats]) -> outputs` that XLA compiles.

    `ints` holds the seedings (seed, offset each) and then the changing ints; `floats` the changing floats.
    Both are weakly typed, so that an element of them promotes as a Python number does. `results` says how the
    outputs are to lie, where that is known: what goes to the host's memory goes there as soon as it is made.
    """
    int_positions = {int(n): words_of_a_seeding() * n_seedings + i for i, n in enumerate(plan.ints)}
    float_positions = {int(n): i for i, n in enumerate(plan.floats)}
    n_inputs = len(graph.inputs)
    precision = in_force()
    to_host = {
        v: how
        for v, how in zip(graph.outputs, results or (), strict=bool(results))
        if how is not None and lies_on_host(how)
    }

    def step(*arguments: Array) -> tuple[Array, ...]:
        rest = list(arguments[n_inputs:])
        ints = rest.pop(0) if n_seedings or int_positions else None
        floats = rest.pop(0) if float_positions else None

        # Taken one by one here and not where the first is asked for, which may be in the body of a loop:
        # a tracer of a body must not be met outside of it.
        sources = (int, ints, int_positions), (float, floats, float_positions)
        single = {
            kind: dict(zip(positions, elements(array, list(positions.values())), strict=True))
            for kind, array, positions in sources
            if array is not None and positions
        }

        def number(n: Number) -> Any:
            if n.value is not None:
                return n.value
            return single[n.kind][n.index]

        def numbers(several: Sequence[Number]) -> Array:
            if all(n.value is None for n in several):
                ours = (ints, int_positions), (floats, float_positions)
                array, positions = ours[several[0].kind is float]
                assert array is not None
                return array[np.array([positions[n.index] for n in several])]
            # A stack of weakly typed numbers is weakly typed.
            return jnp.stack([jnp.asarray(number(n)) for n in several])

        def key(draw: Draw) -> Array:
            assert ints is not None
            return _key(ints, draw.seeding, draw.index)

        scope = Scope(table, precision, number, numbers, key, to_host)
        return evaluate(graph, arguments[:n_inputs], scope)

    return step


def evaluate(graph: Graph, arrays: Sequence[Array], scope: Scope) -> tuple[Array, ...]:
    """The graph's outputs, each node's rule called in turn."""
    values: dict[int, Array] = {-i - 1: x for i, x in enumerate(arrays)}
    for node in graph.nodes:
        inputs = [values[v] for v in node.inputs]

        def results_of(node: Node = node, inputs: list[Array] = inputs) -> Sequence[Array]:
            return _results(node, inputs, scope)

        results = at_line(node, results_of) if are_in_programs() else results_of()
        values.update(zip(node.outputs, results, strict=True))
    return tuple(values[v] for v in graph.outputs)


def _results(node: Node, inputs: list[Array], scope: Scope) -> Sequence[Array]:
    def number(slot: NumberSlot) -> Any:
        return scope.number(node.numbers[slot.index])

    if node.op is ELEMENTS:
        return elements(inputs[0], node.signature.args[1])
    if isinstance(node.op, LoopOp):
        to_host = [scope.to_host.get(v) for v in node.outputs]
        return run_loop(node.op, inputs, replace(scope, to_host={}), evaluate, to_host)
    inputs = on_chips(inputs)
    internal = INTERNAL.get(node.op)
    if internal is not None:
        slots = [s for s in node.signature.args if isinstance(s, NumberSlot)]
        return (internal(node, *inputs, *map(number, slots)),)
    if isinstance(node.op, FunctionOp):
        return node.op(*inputs)
    key = scope.key(node.draw) if node.signature.random and node.draw is not None else None
    with precision_of(node, scope.precision), _default_dtype_of(node):
        return apply(node, inputs, scope.table, number, key)


def _default_dtype_of(node: Node) -> AbstractContextManager[None]:
    dtype = node.signature.default_dtype
    return nullcontext() if dtype is torch.get_default_dtype() else with_default_dtype(dtype)


def _read(signature: Signature, base: Array, offset: Any) -> Array:
    spec, position = signature.args[1:3]
    if offset is None:
        return window.read(base, signature.specs[0], spec, position)
    return window.read_at(base, signature.specs[0], spec, position, offset)


def _write(signature: Signature, base: Array, new: Array, offset: Any) -> Array:
    spec, position = signature.args[2:4]
    if offset is None:
        return window.write(base, new, signature.specs[0], spec, position)
    return window.write_at(base, new, signature.specs[0], spec, position, offset)


def apply(
    node: Node,
    inputs: Sequence[Array],
    table: LoweringTable,
    number: Callable[[NumberSlot], Any],
    key: Array | None,
) -> list[Array]:
    """The results of one node's rule, checked against what PyTorch says they look like."""
    lowering = table.get(node.op)
    if lowering is None:
        raise MissingLowering(
            f"`{node.op}` has no lowering in the table `{table.name}`.",
            hint="add one under `torch_pjrt/lowering/` (CONTRIBUTING.md, 'Add an operator')",
        )

    def tensor(slot: Slot) -> Array:
        return inputs[slot.index]

    args = filled(node.signature.args, tensor, number)
    kwargs = filled(node.signature.kwargs, tensor, number)
    if lowering.random:
        args.insert(0, key)
    results = _call(node, lowering, args, kwargs)
    return [
        _checked(result, spec, node, lowering)
        for result, spec in zip(results, node.signature.outs, strict=True)
    ]


def _call(node: Node, lowering: Lowering, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    try:
        results = lowering.called(node.op, args, kwargs)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise LoweringError(
            f"The rule of `{node.op}` ({lowering.where}) looks at the value of a number that changes.",
            saw=str(error).splitlines()[0],
            hint="name that argument in the row's `static`",
        ) from error
    if node.signature.returns == "tensor":
        results = (results,)
    present = [r for r in results if r is not None and not isinstance(r, int)]
    if len(present) != len(node.signature.outs):
        raise WrongLowering(
            f"The rule of `{node.op}` ({lowering.where}) returned {len(present)} results.",
            expected=f"{len(node.signature.outs)}, as PyTorch does",
        )
    return present


def _checked(result: Any, spec: TensorSpec, node: Node, lowering: Lowering) -> Array:
    dtype = dtypes.to_jax(spec.dtype)
    if torch.complex32 in (spec.dtype, *[f.dtype for f in node.signature.specs]):
        result = complex32.settled(result, spec.dtype)
    if result.shape != tuple(spec.shape) or result.dtype != dtype:
        raise WrongLowering(
            f"The rule of `{node.op}` ({lowering.where}) gave something else than PyTorch.",
            saw=f"{result.dtype}{list(result.shape)}",
            expected=f"{dtype}{list(spec.shape)}",
        )
    return lax.convert_element_type(result, dtype) if result.weak_type else result


def _key(ints: Array, seeding: Any, index: Any) -> Array:
    """The PRNG key of a draw: the seed's key, folded with the generator's offset there."""
    first = words_of_a_seeding() * seeding
    if dtypes.are_wide():
        seed = ints[first]
        offset = ints[first + 1] + index
        words = jnp.stack([lax.shift_right_logical(seed, np.int64(32)), seed]).astype(np.uint32)
    else:
        offset = ints[first + 2] + index
        words = jnp.stack([ints[first], ints[first + 1]]).astype(np.uint32)
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    return jax.random.fold_in(key, offset.astype(np.uint32))


def seeding_words(seed: int, offset: int) -> tuple[int, ...]:
    """How a program is given a seed (any 64 bits) and an offset: int64s, else int32s, the seed as two."""
    if dtypes.are_wide():
        return as_signed(seed, 64), as_signed(offset, 64)
    return as_signed(seed >> 32, 32), as_signed(seed, 32), as_signed(offset, 32)


def words_of_a_seeding() -> int:
    """How many integers `seeding_words` makes."""
    return 2 if dtypes.are_wide() else 3


def as_signed(n: int, bits: int) -> int:
    """The signed integer that has the lowest bits of `n`: seeds are unsigned in PyTorch."""
    half = 1 << (bits - 1)
    return (n + half) % (1 << bits) - half
