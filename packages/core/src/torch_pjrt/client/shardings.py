"""What shardings say: those of stacks and of their elements, and who has which part of an array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

Sharding = jax.sharding.Sharding
Index = tuple[slice, ...]


def stack_of(sharding: Sharding) -> Sharding:
    """How a stack of arrays lies that lie like this: its first dim is whole on each chip."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = jax.sharding.PartitionSpec(None, *sharding.spec)
        return sharding.update(spec=spec)
    return sharding


def element_of(sharding: Sharding) -> Sharding:
    """How an element of a stack lies that lies like this."""
    if isinstance(sharding, jax.sharding.NamedSharding):
        return sharding.update(spec=jax.sharding.PartitionSpec(*sharding.spec[1:]))
    return sharding


def indices(sharding: Sharding, shape: Sequence[int]) -> Iterator[tuple[Index, list[Any]]]:
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
