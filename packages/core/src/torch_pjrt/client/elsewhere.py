"""Arrays of which other processes have parts, too: what one process alone can do with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_pjrt.client import partition
from torch_pjrt.client.shardings import Sharding, indices


def is_elsewhere_too(where: Any) -> bool:
    """Whether a sharding, or a chip, has chips of other processes."""
    return isinstance(where, Sharding) and not where.is_fully_addressable


def own_parts(array: np.ndarray, sharding: Sharding) -> jax.Array:
    """An array of which each process has the same content, and puts its own parts on its chips."""
    for index, _ in indices(sharding, array.shape):
        note_part(sharding, array.shape, index, array[index])
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def note_part(sharding: Sharding, shape: Sequence[int], index: Any, part: np.ndarray) -> None:
    """Tell the partitioner of a part that this process puts on its chips."""
    if (partitioner := partition.chosen.partitioner) is not None:
        partitioner.came(sharding, shape, index, part)


def is_all_here(array: jax.Array) -> bool:
    """Whether this process's chips have all of the array's content between them."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return True
    shape = array.shape
    here = array.sharding.addressable_devices_indices_map(shape).values()
    everywhere = array.sharding.devices_indices_map(shape).values()
    return {str(index) for index in here} == {str(index) for index in everywhere}


def moved(array: jax.Array, target: Sharding) -> jax.Array:
    """The array with another sharding, where it or the target is elsewhere, too.

    All processes that have parts of it must do so.
    """
    if is_elsewhere_too(array.sharding):
        partitioner = partition.chosen.partitioner
        assert partitioner is not None  # who else has made such an array?
        return partitioner.moved(array, target)
    return own_parts(np.asarray(array), target)


def brought_here(array: jax.Array) -> jax.Array:
    """The array, or one of the same content that is whole on each chip, if parts of it are elsewhere only."""
    if is_all_here(array):
        return array
    sharding = array.sharding
    assert isinstance(sharding, jax.sharding.NamedSharding)
    return moved(array, sharding.update(spec=jax.sharding.PartitionSpec()))
