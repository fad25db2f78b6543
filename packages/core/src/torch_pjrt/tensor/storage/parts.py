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
from torch_pjrt.client.elsewhere import is_elsewhere_too, note_part
from torch_pjrt.client.shardings import Index, indices
from torch_pjrt.client.stack_elements import StackElement, whole


def array_of_parts(
    shape: Sequence[int],
    sharding: jax.sharding.Sharding,
    part_at: Callable[[Index], np.ndarray],
) -> jax.Array:
    """An array of parts that `part_at` gives, each asked for once. Nobody may write to them from then on."""
    on_chips: list[Any] = []
    going: list[Any] = []
    is_elsewhere = is_elsewhere_too(sharding)
    for index, chips in indices(sharding, shape):
        part = part_at(index)
        if is_elsewhere:
            note_part(sharding, shape, index, part)
        for array in going:  # so the host has this part and the one before
            array.block_until_ready()
        going = client().put_on_each(part, chips, sharding.memory_kind)
        on_chips += going
    with dtypes.x64(), telling_of_exhaustion("joining the parts of an array"):
        return jax.make_array_from_single_device_arrays(tuple(shape), sharding, on_chips)


class ArrivingArray:
    """An array whose parts come one by one, in any order, and go to their chips at once.

    expected   where those lie that have not come, each with its chips: parts of chips of this process.
    """

    def __init__(self, shape: Sequence[int], sharding: jax.sharding.Sharding) -> None:
        self._shape, self._sharding = tuple(shape), sharding
        self.expected = {_bounds(index): chips for index, chips in indices(sharding, shape)}
        self._on_chips: list[Any] = []

    def put(self, index: Index, part: np.ndarray) -> jax.Array | None:
        """The array, with the last part. Nobody may write to the part from now on; `KeyError` for another."""
        chips = self.expected.pop(_bounds(index))
        self._on_chips += client().put_on_each(part, chips, self._sharding.memory_kind)
        if self.expected:
            return None
        with dtypes.x64(), telling_of_exhaustion("joining the parts of an array"):
            return jax.make_array_from_single_device_arrays(
                self._shape, self._sharding, self._on_chips
            )


def _bounds(index: Index) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in index)


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


def parts_here(
    array: Any, begun: dict[int, Any]
) -> Iterator[tuple[Index, Callable[[], np.ndarray]]]:
    """Each part that a chip of this process has, once, and what brings it to the host; read it only.

    The copies to the host begin now, those of a stack once for all of its elements: `begun` has them.
    """
    is_element = array.__class__ is StackElement
    seen = set()
    for shard in whole(array).addressable_shards:
        if (where := str(shard.index)) in seen:
            continue
        seen.add(where)
        key = id(shard.data)
        if key not in begun:
            other = _another(shard.data)
            if shard.device.platform != "cpu":
                other.copy_to_host_async()
            begun[key] = (other, shard.data)  # which keeps the number its own
        other = begun[key][0]
        slices = shard.index[1:] if is_element else shard.index
        index = tuple(slice(*s.indices(n)[:2]) for s, n in zip(slices, array.shape, strict=True))
        i = array.index if is_element else ...
        yield index, lambda other=other, i=i: np.asarray(other)[i]


def _another(array: jax.Array) -> jax.Array:
    """Another array on the same memory: what JAX keeps of its content goes when it does."""
    with dtypes.x64():
        return jax.make_array_from_single_device_arrays(array.shape, array.sharding, [array])
