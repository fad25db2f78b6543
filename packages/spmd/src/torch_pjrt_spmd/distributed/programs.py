"""Collectives as programs of their own, each on one chip of each process of a group.

Each process gives its own array. To JAX these are copies of one array, which they are not; within
`shard_map` each chip computes on its own. So nothing is reshaped or moved on the way in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from torch_pjrt.extend import client, counters, x64

_AXIS = "ranks"


class Chips:
    """The chips of a group's processes, one of each, in the order of ranks."""

    def __init__(self, chips: Sequence[Any]) -> None:
        self._chips = chips
        self._compiled: dict[Any, Any] = {}

    @cached_property
    def mesh(self) -> Any:
        import jax
        import numpy as np

        return jax.sharding.Mesh(np.array(self._chips, object), (_AXIS,))

    @cached_property
    def _each_its_own(self) -> Any:
        import jax

        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec())

    def run(self, key: Any, function: Callable[..., Any], arrays: Sequence[Any]) -> list[Any]:
        """What `function`, a sequence of arrays, gives on this process's chip.

        key      equal for functions that are: with shapes and dtypes, a program's name.
        function of as many arrays as are given, under `shard_map`, along the axis `ranks`.
        arrays   on this process's chip.
        """
        import jax

        full_key = (key, tuple((a.shape, a.dtype) for a in arrays))
        with x64():
            given = [
                jax.make_array_from_single_device_arrays(a.shape, self._each_its_own, [a])
                for a in arrays
            ]
            compiled = self._compiled.get(full_key)
            if compiled is None:
                own = jax.sharding.PartitionSpec()
                mapped = jax.shard_map(
                    function, mesh=self.mesh, in_specs=own, out_specs=own, check_vma=False
                )
                shapes = [
                    jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in given
                ]
                compiled, _ = client().compile(mapped, shapes, (), shardings=self._each_its_own)
                self._compiled[full_key] = compiled
            with counters.timed("launch_s"):
                results = compiled(*given)
            counters.programs_run += 1
            return [result.addressable_data(0) for result in results]


def axis() -> str:
    """The name of the axis along which ranks lie, in functions that `Chips.run` runs."""
    return _AXIS
