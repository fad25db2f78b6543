"""A barrier: what comes after it is not merged with what came before, by us or by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch
from jax import lax

from torch_pjrt.extend import FunctionOp, buffer_of, intern, record, value_of, wrap
from torch_pjrt.plugin import Slot, contiguous_spec


def _compute(*arrays: jax.Array) -> Sequence[jax.Array]:
    return lax.optimization_barrier(arrays)


_BARRIER = FunctionOp("pjrt.barrier", _compute)


def behind_barrier(tensors: Sequence[Any]) -> list[Any]:
    """The same tensors, made anew from the old ones' values; numbers as they are."""
    positions = [i for i, t in enumerate(tensors) if isinstance(t, torch.Tensor)]
    if not positions:
        return list(tensors)
    specs = [buffer_of(tensors[i]).spec for i in positions]
    looks = tuple(contiguous_spec(f.shape, f.dtype) for f in specs)
    slots = tuple(map(Slot, range(len(positions))))
    signature = intern(_BARRIER, slots, {}, looks, looks, returns="list")
    values = record(signature, [value_of(tensors[i]) for i in positions], [])
    made = list(tensors)
    for i, value, spec in zip(positions, values, specs, strict=True):
        made[i] = wrap(value, spec)
    return made
