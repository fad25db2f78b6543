"""A kernel in a program that XLA splits over chips: each chip computes its own parts, without an exchange.

XLA cannot split what a kernel computes, so the call is a `shard_map`, and for that it must be known how its
arrays will lie. A program with such calls is lowered twice. The first time a call is a custom call with a
rule of Shardy's, and Shardy, which XLA splits programs by, spreads the program's shardings through all of it.
The second time each call is mapped over the axes along which its arrays then lie.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec, get_abstract_mesh

from torch_pjrt.extend import lowering_now, program_chips
from torch_pjrt.plugin import each_operation
from torch_pjrt_kernels.own.on_chip import traced_on_the_chip
from torch_pjrt_kernels.own.rule_of_dims import Dims, SizedRule, SplittingRule

Array = jax.Array
Spec = tuple[tuple[str, ...], ...]  # of each dim the axes along which it is split

_CALL = "torch_pjrt_kernels.call"
_PIPELINE = "sdy-propagation-pipeline"


@dataclass(frozen=True, slots=True)
class Lying:
    """How the arrays of a call lie, and then its results: on a mesh of these axes."""

    axes: dict[str, int]
    specs: tuple[Spec, ...]


def splits() -> bool:
    """Whether XLA splits the program that is made now: outside of any `shard_map`."""
    return program_chips() > 1 and get_abstract_mesh().empty


def on_chips(function: Callable[..., Any], rule: SplittingRule, *arrays: Array) -> Any:
    """What a kernel gives, traced for the chip; of arrays that XLA would split, on each chip of its parts."""
    traced = partial(traced_on_the_chip, function)
    return split(traced, rule, arrays) if splits() else traced(*arrays)


def split(function: Callable[..., Any], rule: SplittingRule, arrays: Sequence[Array]) -> Any:
    """What `function` gives of arrays that lie on several chips, each computing its parts.

    Raises `LoweringError` for arrays that have other dims than the rule says.
    """
    shapes = jax.eval_shape(function, *arrays)
    leaves, structure = jax.tree.flatten(shapes)
    sized = rule.of_shapes([x.shape for x in arrays], [x.shape for x in leaves])
    now = lowering_now()
    number = now.n_asked
    calls = now.ask(how_calls_lie)
    if calls is None:
        stand_in = jax.ffi.ffi_call(_CALL, leaves)
        found = stand_in(*arrays, number=np.int32(number), rule=sized.of_shardy())
        return jax.tree.unflatten(structure, found)
    found = _mapped(function, sized, arrays, calls.get(number), now.chips)
    return jax.tree.unflatten(structure, found)


def _mapped(
    function: Callable[..., Any],
    sized: SizedRule,
    arrays: Sequence[Array],
    lying: Lying | None,
    chips: Sequence[Any],
) -> Sequence[Array]:
    """The results, as a flat list."""
    rule, axes, sizes, times = sized.rule, {}, {"chips": len(chips)}, 1
    if lying is not None:
        times, sized = sized.repeated(lying.specs, lying.axes)
        axes, sizes = sized.axes_of_names(lying.specs, lying.axes), lying.axes
    mesh = Mesh(np.array(chips).reshape(*sizes.values()), tuple(sizes))

    def specs(arrays: Sequence[Dims]) -> tuple[PartitionSpec, ...]:
        return tuple(PartitionSpec(*(axes.get(dim[0]) for dim in dims)) for dims in arrays)

    def on_chip(*parts: Array) -> tuple[Array, ...]:
        found = jax.tree.leaves(function(*parts))
        return tuple(_summed(x, dims, axes) for x, dims in zip(found, rule.results, strict=True))

    mapped = jax.shard_map(
        on_chip, mesh=mesh, in_specs=specs(rule.arrays), out_specs=specs(rule.results),
        check_vma=False,
    )  # fmt: skip
    if times == 1 or rule.shared is None:
        return mapped(*arrays)
    alone = (rule.shared[0],)
    more = [
        jax.numpy.repeat(x, times, dims.index(alone)) if alone in dims else x
        for x, dims in zip(arrays, rule.arrays, strict=True)
    ]
    return [
        _sums(x, times, dims.index(alone)) if alone in dims else x
        for x, dims in zip(mapped(*more), rule.results, strict=True)
    ]


def _sums(x: Array, times: int, at: int) -> Array:
    """The sums of so many along a dim, in float32: of gradients of what was repeated."""
    shape = (*x.shape[:at], x.shape[at] // times, times, *x.shape[at + 1 :])
    return x.reshape(shape).astype("float32").sum(at + 1).astype(x.dtype)


def _summed(x: Array, dims: Dims, axes: dict[str, tuple[str, ...]]) -> Array:
    names = {dim[0] for dim in dims}
    over = [a for name, of in axes.items() if name not in names for a in of]
    return jax.lax.psum(x, tuple(over)) if over and x.size else x


def how_calls_lie(module: Any) -> dict[int, Lying]:
    """Of each call in a program, by its number, how its arrays and results will lie; as Shardy says.

    Nothing of any call where this JAX has no such pipeline: then each chip gets whole arrays.
    """
    from jax.extend.mlir import ir

    with module.context, ir.Location.unknown():
        pipeline = _propagation()
        if pipeline is None:
            return {}
        copy = module.operation.clone()
        for call in _calls_in(copy):
            text = ir.StringAttr(_of_call(call, "rule")).value
            call.attributes["sdy.sharding_rule"] = ir.Attribute.parse(text)
        pipeline.run(copy)
        meshes = {
            op.attributes["sym_name"].value: _axes_of(op.attributes["mesh"])
            for op in copy.regions[0].blocks[0].operations
            if op.operation.name == "sdy.mesh"
        }
        found: dict[int, Lying] = {}
        for call in _calls_in(copy):
            number = ir.IntegerAttr(_of_call(call, "number")).value
            lying = _lying(call, meshes)
            if lying is not None:  # a function that is called twice may be there twice
                found.setdefault(number, lying)
        return found


def _propagation() -> Any:
    """Shardy's passes that spread shardings, which are no public part of JAX; None without them."""
    try:
        from jaxlib.mlir.passmanager import PassManager

        return PassManager.parse(f"builtin.module({_PIPELINE})")
    except (ImportError, AttributeError, ValueError) as error:
        warnings.warn(
            "this JAX does not say how arrays of kernels lie on a mesh: each chip computes all of them, from "
            f"arrays that are gathered ({str(error).splitlines()[0]})",
            stacklevel=2,
        )
        return None


def _calls_in(operation: Any) -> list[Any]:
    return [
        op
        for op in each_operation(operation)
        if op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == _CALL
    ]


def _of_call(call: Any, name: str) -> Any:
    from jax.extend.mlir import ir

    return ir.DictAttr(call.attributes["mhlo.backend_config"])[name]


def _axes_of(mesh: Any) -> dict[str, int]:
    from jax.extend.mlir.dialects import sdy

    axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh).axes)
    return {axis.name: axis.size for axis in axes}


def _lying(call: Any, meshes: dict[str, dict[str, int]]) -> Lying | None:
    """None where nothing of it is spread."""
    values = [*map(_sharding_of, call.operands), *_shardings(call)]
    ranks = [len(x.type.shape) for x in (*call.operands, *call.results)]
    values += [None] * (len(ranks) - len(values))
    name = next((value[0] for value in values if value is not None), None)
    if name is None:
        return None
    specs = tuple(
        value[1] if value is not None and value[0] == name else ((),) * rank
        for value, rank in zip(values, ranks, strict=True)
    )
    return Lying(meshes[name], specs)


def _sharding_of(value: Any) -> tuple[str, Spec] | None:
    """The mesh of a value, by name, and its spec."""
    from jax.extend.mlir import ir

    owner = value.owner
    if isinstance(owner, ir.Block):
        n, owner = ir.BlockArgument(value).arg_number, owner.owner
        if owner.name == "func.func":
            if "arg_attrs" not in owner.attributes:
                return None
            given = ir.DictAttr(ir.ArrayAttr(owner.attributes["arg_attrs"])[n])
            return _read(given["sdy.sharding"]) if "sdy.sharding" in given else None
    else:
        n = ir.OpResult(value).result_number
    if owner.name == "sdy.reshard":
        return _read(owner.attributes["sharding"])
    found = _shardings(owner)
    return found[n] if n < len(found) else None


def _shardings(op: Any) -> list[tuple[str, Spec] | None]:
    from jax.extend.mlir.dialects import sdy

    if "sdy.sharding" not in op.attributes:
        return []
    return [
        _read(x) for x in sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings
    ]


def _read(attribute: Any) -> tuple[str, Spec] | None:
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import sdy

    sharding = sdy.TensorShardingAttr(attribute)
    if not isinstance(sharding.mesh_or_ref, ir.FlatSymbolRefAttr):
        return None
    dims = map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    return sharding.mesh_or_ref.value, tuple(_whole_axes(dim) for dim in dims)


def _whole_axes(dim: Any) -> tuple[str, ...]:
    """The axes of a dim before the first that it is split along in part only."""
    from jax.extend.mlir.dialects import sdy

    found: list[str] = []
    for axis in map(sdy.AxisRefAttr, dim.axes):
        if axis.sub_axis_info is not None:
            break
        found.append(axis.name)
    return tuple(found)
