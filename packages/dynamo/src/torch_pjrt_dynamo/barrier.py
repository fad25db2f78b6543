"""A barrier: what comes after it is not merged with what came before, by us or by XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch
from jax import lax

from torch_pjrt.extend import FunctionOp, buffer_of, intern, record, value_of, wrap
from torch_pjrt.plugin import Slot, contiguous_face


def _compute(*arrays: jax.Array) -> Sequence[jax.Array]:
    return lax.optimization_barrier(arrays)


_BARRIER = FunctionOp("pjrt.barrier", _compute)


def behind_barrier(tensors: Sequence[Any]) -> list[Any]:
    """The same tensors, made anew from the old ones' values; numbers as they are."""
    places = [i for i, t in enumerate(tensors) if isinstance(t, torch.Tensor)]
    if not places:
        return list(tensors)
    faces = [buffer_of(tensors[i]).face for i in places]
    looks = tuple(contiguous_face(f.shape, f.dtype) for f in faces)
    slots = tuple(map(Slot, range(len(places))))
    signature = intern(_BARRIER, slots, {}, looks, looks, returns="list")
    values = record(signature, [value_of(tensors[i]) for i in places], [])
    made = list(tensors)
    for i, value, face in zip(places, values, faces, strict=True):
        made[i] = wrap(value, face)
    return made
