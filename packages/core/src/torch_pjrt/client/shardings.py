"""Shardings of stacks and of their elements, from each other."""

from __future__ import annotations

import jax

Sharding = jax.sharding.Sharding


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
