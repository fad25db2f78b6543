"""The arrays that are alive on the chips of this process, whoever made them, with the bytes of each there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from torch_pjrt.client.client import client
from torch_pjrt.client.failed import has_failed, is_there
from torch_pjrt.lowering.host_memory import lies_on_host


def live_parts() -> Iterator[tuple[jax.Array, int, int]]:
    """Each array, the number of a chip that has a part of it, and the bytes there; shared memory once.

    A chip's memory that several arrays share is the first one's: of arrays on several chips JAX knows the
    parts as arrays, too. What failed has none, and what lies in the host's memory none on a chip.
    """
    numbers = {chip: number for number, chip in enumerate(client().chips)}
    arrays = [a for a in client().chip.client.live_arrays() if not a.is_deleted()]
    if len(numbers) > 1:
        arrays.sort(key=lambda array: -len(array.sharding.device_set))
    seen: set[Any] = set()
    for array in arrays:
        if lies_on_host(array.sharding) or numbers.keys().isdisjoint(array.sharding.device_set):
            continue
        if has_failed(array):
            continue
        try:
            parts = [
                (numbers[chip], address_of(part), part.on_device_size_in_bytes())
                for chip, part in _parts(array)
                if chip in numbers
            ]
        except RuntimeError:  # another thread has deleted it
            continue
        for number, address, nbytes in parts:
            if (number, address) not in seen:
                seen.add((number, address))
                yield array, number, nbytes


def _parts(array: jax.Array) -> list[tuple[Any, Any]]:
    """Of each chip of this process, on which the array is, what is there."""
    if len(array.sharding.device_set) == 1:
        [chip] = array.sharding.device_set
        return [(chip, array)]
    return [(shard.device, shard.data) for shard in array.addressable_shards]


def address_of(array: Any) -> Any:
    """Where an array of one chip lies; what is not there yet lies where no other does."""
    if not is_there(array):
        return id(array)
    try:
        return array.unsafe_buffer_pointer() or id(array)
    except (RuntimeError, NotImplementedError, ValueError):  # devices that do not tell
        return id(array)
