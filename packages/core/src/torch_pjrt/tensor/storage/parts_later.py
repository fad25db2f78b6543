"""What tensors have now, to be read later: a program copies their arrays on the device.

    of(tensor)    notes the array, which may still be being computed
    copy(parts)   launches one program for the arrays of each set of chips, and lets go of them
    part()        brings a part of a copy to the host, in any thread

An array itself cannot be kept: the next step takes its memory for its results. With the copy launched before
that step is, the device does the one before the other, and nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_pjrt import dtypes
from torch_pjrt.client import memory
from torch_pjrt.client.client import client, telling_of_exhaustion
from torch_pjrt.client.shardings import Index, indices
from torch_pjrt.client.stack_elements import StackElement, whole
from torch_pjrt.client.wait import awaited
from torch_pjrt.run.deferred_checks import look
from torch_pjrt.tensor.storage.transfer import from_numpy, host_view, own_array

# Where a part begins and ends, in each dim.
Bounds = tuple[tuple[int, int], ...]


class PartsLater:
    """The content of `pjrt` tensors by the parts that chips of this process have, each part once.

    It is that of the moment of `copy`, and may be read after it by any thread. The copies take memory of the
    device, and go with this object and its parts.

        >>> x = torch.ones(2, device="pjrt")
        >>> parts = PartsLater()
        >>> [(index, read)] = parts.of(x)
        >>> parts.copy([read])
        True
        >>> index, read()  # in any thread, whatever becomes of `x`
        ((slice(0, 2, None),), tensor([1., 1.]))
    """

    def __init__(self) -> None:
        self._arrays: list[Any] = []
        self._slots: dict[int, int] = {}
        self._copies: dict[int, Any] = {}

    def of(self, tensor: torch.Tensor) -> list[tuple[Index, Callable[[], torch.Tensor]]]:
        """Where each part lies, a slice for each dim, and what gives it, as a CPU tensor to be read only.

        Runs what is pending, and waits for nothing. What does not fill its memory in the usual way, a view
        say, is one part, and is brought to the host now.
        """
        array: Any = own_array(tensor, wait=False)
        if array is None:
            now = host_view(tensor).clone()
            return [(tuple(slice(0, n) for n in tensor.shape), lambda: now)]
        element = array.index if array.__class__ is StackElement else None
        held = whole(array)
        dims = slice(0 if element is None else 1, None)
        return [
            (index[dims], Part(self, self._slot(held, bounds), bounds, element, tensor.dtype))
            for index, bounds in _parts_of(held.sharding, held.shape)
        ]

    def _slot(self, array: Any, bounds: Bounds) -> int:
        if not array.is_fully_addressable:  # else the program would be one of all its processes
            array = next(part for where, part in _on_chips(array) if where == bounds)
        slot = self._slots.setdefault(id(array), len(self._arrays))
        if slot == len(self._arrays):
            self._arrays.append(array)
        return slot

    def copy(self, parts: Iterable[Any]) -> bool:
        """Launch the copies of what these parts, of `of`, are of; whether there is room for them.

        If there is none, beside what was in use at most, nothing is copied, and parts read the tensors
        themselves: read them before anything else runs. Other parts are let go.
        """
        wanted = sorted({part.slot for part in parts if isinstance(part, Part)})
        arrays = {slot: self._arrays[slot] for slot in wanted}
        self._arrays.clear()
        self._slots.clear()
        look()
        if not _has_room(sum(map(_bytes_of_a_chip, arrays.values()))):
            self._copies = {slot: _begun(array) for slot, array in arrays.items()}
            return False
        groups: dict[Any, list[int]] = {}
        for slot, array in arrays.items():
            groups.setdefault(frozenset(array.sharding.device_set), []).append(slot)
        for slots in groups.values():
            some = [arrays[slot] for slot in slots]
            with dtypes.x64(), telling_of_exhaustion("copying what is to be read later"):
                made, _ = _copying(tuple([x.sharding for x in some]))(some)
            self._copies.update(zip(slots, made, strict=True))
        return True

    def _read(self, slot: int) -> dict[Bounds, np.ndarray]:
        found = self._copies[slot]
        if not isinstance(found, dict):
            awaited(found, "copying what is to be read later")
            found = {where: np.asarray(part) for where, part in _on_chips(found)}
            self._copies[slot] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What reads a part of a copy.

    element   of a stack of arrays; None: the array is the tensor's own.
    """

    of: PartsLater
    slot: int
    bounds: Bounds
    element: int | None
    dtype: torch.dtype

    def __call__(self) -> torch.Tensor:
        parts = self.of._read(self.slot)
        part = parts[self.bounds] if self.bounds in parts else next(iter(parts.values()))
        return from_numpy(part if self.element is None else part[self.element, ...], self.dtype)


@lru_cache(maxsize=4096)
def _parts_of(sharding: Any, shape: tuple[int, ...]) -> list[tuple[Index, Bounds]]:
    return [(index, _bounds(index, shape)) for index, _ in indices(sharding, shape)]


def _on_chips(array: Any) -> Iterator[tuple[Bounds, Any]]:
    for shard in array.addressable_shards:
        yield _bounds(shard.index, array.shape), shard.data


def _bounds(index: Index, shape: tuple[int, ...]) -> Bounds:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _begun(array: Any) -> Any:
    """Another array on the same memory, on its way to the host: what JAX keeps of that goes when it does."""
    with dtypes.x64():
        on_chips = [shard.data for shard in array.addressable_shards]
        other = jax.make_array_from_single_device_arrays(array.shape, array.sharding, on_chips)
    if client().chip.platform != "cpu":
        other.copy_to_host_async()
    return other


@lru_cache(maxsize=64)
def _copying(shardings: tuple[Any, ...]) -> Callable[[list[Any]], tuple[list[Any], Any]]:
    """The program that copies arrays which lie so, each where it is."""

    def copied(arrays: list[Any]) -> tuple[list[Any], Any]:
        # On the CPU the caller's thread runs what has under a thousand flops, and others run the rest.
        some = jax.lax.optimization_barrier(jnp.ones((32, 32), jnp.float32))
        return [jnp.copy(x) for x in arrays], some @ some

    return jax.jit(copied, out_shardings=(list(shardings), None))


def _has_room(n_bytes: int) -> bool:
    """Whether a chip has so many bytes beside what was in use at most; of the host's memory half is left."""
    if client().chip.platform == "cpu":
        return n_bytes < memory.free() / 2
    return n_bytes < memory.total() - memory.peak()


def _bytes_of_a_chip(array: Any) -> int:
    return _size_of_part(array.sharding, array.shape) * array.dtype.itemsize


@lru_cache(maxsize=4096)
def _size_of_part(sharding: Any, shape: tuple[int, ...]) -> int:
    return math.prod(sharding.shard_shape(shape))
