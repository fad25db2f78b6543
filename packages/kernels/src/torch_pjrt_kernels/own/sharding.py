"""How a kernel is split over chips: `b s d, d -> b s d` says which dims of its arrays are the same.

The notation is that of Shardy's rules (`jax.experimental.custom_partitioning`). XLA asks how each call is to
be split when it partitions the program; each chip then computes its own parts, without an exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, get_abstract_mesh

from torch_pjrt.errors import LoweringError
from torch_pjrt.extend import program_chips
from torch_pjrt.plugin import client

Array = jax.Array
Dims = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SplittingRule:
    """Names for the dims of each array that is given, and of each result.

    Arrays are split along a dim whose name all results have, and some array; the others are kept whole.
    `names_split` says for a gradient along which instead: where it lacks one the parts are added up.
    """

    arrays: tuple[Dims, ...]
    results: tuple[Dims, ...]
    names_split: frozenset[str] | None = None

    @classmethod
    def parsed(cls, text: str, n_arrays: int, n_results: int) -> SplittingRule:
        """Read from `i j, j -> i j`. Raises `LoweringError` where it has not one part for each array."""
        left, arrow, right = text.partition("->")
        arrays, results = (
            tuple(tuple(part.split()) for part in side.split(",")) for side in (left, right)
        )
        names = [name for dims in (*arrays, *results) for name in dims]
        fits = (len(arrays), len(results)) == (n_arrays, n_results)
        if not arrow or not fits or not all(name.isidentifier() for name in names):
            raise LoweringError(
                "The sharding rule of a kernel does not fit its arrays.",
                saw=repr(text),
                expected=f"names of dims for {n_arrays} arrays -> for {n_results} results, "
                "as in `i j, j -> i j`",
            )
        return cls(arrays, results)

    def split_names(self) -> frozenset[str]:
        """The names along which arrays may be split."""
        if self.names_split is not None:
            return self.names_split
        given = {name for dims in self.arrays for name in dims}
        return frozenset(given.intersection(*map(set, self.results)))

    def of_gradient(self) -> SplittingRule:
        """The rule of the backward: of the results' gradients and the arrays, the arrays' gradients."""
        return SplittingRule((*self.results, *self.arrays), self.arrays, self.split_names())

    def batched(self, dims: Sequence[int]) -> SplittingRule:
        """The rule with a batch at these dims of the arrays, -1 where there is none, and first in results."""
        batch = "batch_of_vmap"
        arrays = [
            d if at < 0 else (*d[:at], batch, *d[at:])
            for d, at in zip(self.arrays, dims, strict=True)
        ]
        return SplittingRule(tuple(arrays), tuple((batch, *d) for d in self.results))

    def of_these(self, present: Sequence[bool]) -> SplittingRule:
        """The rule of a call that lacks some arrays."""
        given = [d for d, p in zip(self.arrays, present, strict=True) if p]
        return SplittingRule(tuple(given), self.results, self.names_split)


def splits() -> bool:
    """Whether XLA splits the program that is made now, and asks how."""
    return program_chips() > 1 and get_abstract_mesh().empty and client().chip.platform != "tpu"


def split(function: Callable[..., Any], rule: SplittingRule, arrays: Sequence[Array]) -> Any:
    """What `function` gives of arrays that lie on several chips, each computing its parts.

    Raises `LoweringError` for arrays that have other dims than the rule says.
    """
    from jax.experimental.custom_partitioning import custom_partitioning

    shapes = jax.eval_shape(function, *arrays)
    leaves, structure = jax.tree.flatten(shapes)
    _check(rule.arrays, arrays)
    # The gradient of an array of integers has no elements.
    results = [
        ("nothing",) if rule.names_split is not None and x.shape == (0,) else dims
        for dims, x in zip(rule.results, leaves, strict=True)
    ]
    _check(results, leaves)
    whole = SplittingRule(rule.arrays, tuple(results), rule.names_split)
    # In the order in which the rule names them: Shardy verifies that.
    named = dict.fromkeys(name for dims in (*rule.arrays, *results) for name in dims)
    kept = tuple(name for name in named if name not in whole.split_names())

    def partition(mesh: Any, given: Any, wanted: Any) -> Any:
        axes = _axes_of_names(whole, [*given, *jax.tree.leaves(wanted)], mesh)

        def spread(dims: Dims) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*(axes.get(name) for name in dims)))

        def on_chip(*parts: Array) -> Any:
            found = jax.tree.leaves(function(*parts))
            sums = [_summed(x, dims, axes) for x, dims in zip(found, results, strict=True)]
            return jax.tree.unflatten(structure, sums)

        out = jax.tree.unflatten(structure, [spread(dims) for dims in results])
        return mesh, on_chip, out, tuple(spread(dims) for dims in whole.arrays)

    def _summed(x: Array, dims: Dims, axes: dict[str, Any]) -> Array:
        over = [a for name, of in axes.items() if name not in dims for a in of]
        return jax.lax.psum(x, tuple(over)) if over and x.size else x

    partitioned = custom_partitioning(function)
    partitioned.def_partition(
        partition=partition, sharding_rule=_text(whole), need_replication_factors=kept
    )
    return partitioned(*arrays)


def _axes_of_names(rule: SplittingRule, shaped: Sequence[Any], mesh: Any) -> dict[str, Any]:
    """Along which axes of the mesh arrays are split by each name; an axis serves one name."""
    found: dict[str, Any] = {}
    for dims, x in zip((*rule.arrays, *rule.results), shaped, strict=True):
        spec = getattr(x.sharding, "spec", ())
        for name, entry, size in zip(dims, spec, x.shape, strict=False):
            axes = entry if isinstance(entry, tuple) else (entry,)
            if entry is None or name in found or name not in rule.split_names():
                continue
            n, used = 1, {a for of in found.values() for a in of}
            for axis in axes:
                n *= mesh.shape[axis]
            if size % n == 0 and not used.intersection(axes):
                found[name] = axes
    return found


def _check(expected: Sequence[Dims], arrays: Sequence[Any]) -> None:
    for dims, x in zip(expected, arrays, strict=True):
        if len(dims) != len(x.shape):
            raise LoweringError(
                "The sharding rule of a kernel has other dims than its array.",
                saw=str(list(x.shape)),
                expected=" ".join(dims),
            )


def _text(rule: SplittingRule) -> str:
    sides = (", ".join(" ".join(d) for d in side) for side in (rule.arrays, rule.results))
    return " -> ".join(sides)
