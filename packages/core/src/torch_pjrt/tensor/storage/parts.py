"""Arrays that lie on several chips, brought to them and read from them part by part.

Neither the host nor any chip has the whole on the way: of a source that is mapped from a file, the host holds
two parts at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from torch_pjrt import dtypes
from torch_pjrt.client.client import client, telling_of_exhaustion
from torch_pjrt.client.stack_elements import StackElement, whole

Index = tuple[slice, ...]


def indices(
    sharding: jax.sharding.Sharding, shape: Sequence[int]
) -> Iterator[tuple[Index, list[Any]]]:
    """Each part of an array of this shape, a slice for each dim, and the chips of this process with it."""
    parts: dict[tuple[tuple[int, int], ...], list[Any]] = {}
    for chip, index in sharding.addressable_devices_indices_map(tuple(shape)).items():
        assert index is not None
        bounds = tuple(
            (s.indices(n)[0], s.indices(n)[1]) for s, n in zip(index, shape, strict=True)
        )
        parts.setdefault(bounds, []).append(chip)
    for bounds, chips in parts.items():
        yield tuple(slice(*bound) for bound in bounds), chips


def array_of_parts(
    shape: Sequence[int],
    sharding: jax.sharding.Sharding,
    part_at: Callable[[Index], np.ndarray],
) -> jax.Array:
    """An array of parts that `part_at` gives, each asked for once. Nobody may write to them from then on."""
    on_chips: list[Any] = []
    going: list[Any] = []
    for index, chips in indices(sharding, shape):
        part = part_at(index)
        for array in going:  # so the host has this part and the one before
            array.block_until_ready()
        going = client().put_on_each(part, chips)
        on_chips += going
    with dtypes.x64(), telling_of_exhaustion("joining the parts of an array"):
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, on_chips)


def is_in_parts(array: Any) -> bool:
    """Whether no chip has all of the array."""
    sharding = array.sharding
    return len(sharding.device_set) > 1 and not sharding.is_fully_replicated


def joined(array: Any) -> np.ndarray:
    """The content of an array in parts, or of an element of a stack, in memory of its own.

    The array must be there. JAX would keep what it gives of it as long as the array lives.
    """
    host = np.empty(array.shape, array.dtype)
    for index, part in parts_of(array):
        host[index] = part
    return host


def parts_of(array: Any) -> Iterator[tuple[Index, np.ndarray]]:
    """Each part that some chip has, once, and where it lies in the array; read it only."""
    is_element = array.__class__ is StackElement
    seen = set()
    for shard in whole(array).addressable_shards:
        if (where := str(shard.index)) not in seen:
            seen.add(where)
            here = np.asarray(_another(shard.data))
            if is_element:
                yield shard.index[1:], here[array.index]
            else:
                yield shard.index, here


def _another(array: jax.Array) -> jax.Array:
    """Another array on the same memory: what JAX keeps of its content goes when it does."""
    with dtypes.x64():
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
