"""Arrays moved to where a program wants them, where a package spreads them over several chips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

from torch_pjrt import dtypes
from torch_pjrt.client import partition
from torch_pjrt.client.client import telling_of_exhaustion
from torch_pjrt.client.elsewhere import is_elsewhere_too, moved
from torch_pjrt.client.shardings import Sharding
from torch_pjrt.client.stack_elements import alone

if TYPE_CHECKING:
    from torch_pjrt.graph.tape import Value


def _array_of(value: Value) -> Any:
    """The array of an input, which has one."""
    return value.array


def put_together(values: Sequence[Value], target: Sharding | None = None) -> tuple[Sharding, ...]:
    """Where a program's inputs lie. Without a partitioner: nothing.

    Those on one chip are moved to where the others are, if those are on several; where all are on one, to
    the target, if there is one.
    """
    partitioner = partition.chosen.partitioner
    if partitioner is None:
        return ()
    shardings = tuple([array.sharding for array in map(_array_of, values)])
    target = partitioner.common(shardings) or target
    if target is None:
        return shardings
    for value, sharding in zip(values, shardings, strict=True):
        if len(sharding.device_set) == 1 and len(target.device_set) > 1:
            value.array = placed(value.array, target)
    return tuple([array.sharding for array in map(_array_of, values)])


def placed(array: Any, target: Sharding) -> jax.Array:
    """The array with another sharding; its own memory is never shared.

    >>> chip = jax.sharding.SingleDeviceSharding(client().chip)
    >>> placed(jnp.ones(2), chip).sharding == chip
    True
    """
    with dtypes.x64(), telling_of_exhaustion("spreading an array over chips"):
        own = alone(array)
        if is_elsewhere_too(target) or is_elsewhere_too(own.sharding):
            return moved(own, target)
        return jax.device_put(own, target, may_alias=False)


def as_compiled_for(arrays: list[Any], shardings: Sequence[Sharding]) -> list[Any]:
    """The arrays, those moved that do not lie as the program was compiled for."""
    if partition.chosen.partitioner is None or not shardings:
        return arrays
    return [
        array if array.sharding == sharding else placed(array, sharding)
        for array, sharding in zip(arrays, shardings, strict=True)
    ]
