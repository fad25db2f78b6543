"""What cuDNN's fused attention does not take, in words: from shapes, dtypes, the card and cuDNN's version.

The limits are those of NVIDIA's table for cuDNN's attention, of its release notes, and of JAX's own checks. A
forward and its backward must be judged alike, so a call is taken only if both kernels take it.
https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import numpy as np

from torch_pjrt.plugin import rules

Call = rules.Attention | rules.AttentionBackward

_HALVES = (np.dtype(np.float16), jax.dtypes.canonicalize_dtype("bfloat16"))
_MiB = 2**20
# The kernel reads a number for each query and key. A mask that has fewer is made that long, up to this size.
_MOST_EXPANDED = 64 * _MiB


@dataclass(frozen=True, slots=True)
class Generation:
    """Cards from a compute capability on.

    version      the first of cuDNN that has both kernels for them: 90500 is 9.5.0.
    widest       the widest head that both take.
    """

    capability: tuple[int, int]
    version: int
    widest: int


#          capability  cuDNN  widest head
GENERATIONS = (
    Generation((8, 0), 90000, 128),  # Ampere, Ada
    Generation((9, 0), 90500, 256),  # Hopper
    Generation((10, 0), 90700, 128),  # Blackwell
    Generation((10, 3), 91100, 128),
    Generation((12, 0), 90700, 128),
)  # fmt: skip


def objection_of_call(call: Call) -> str | None:
    """What the kernels have against a call on any card; None if they take it."""
    query, key, value = call.query, call.key, call.value
    if query.ndim != 4:
        return f"it takes 4 dims, and this has {query.ndim}"
    if query.dtype not in _HALVES or {key.dtype, value.dtype} != {query.dtype}:
        dtypes = ", ".join(sorted({str(x.dtype) for x in (query, key, value)}))
        return f"it multiplies in bfloat16 or float16, and this is {dtypes}"
    if call.dropout_p:
        return "dropout: the kernel draws with a seed that is a constant of the program"
    if call.first_row:
        return f"the first query's position is {call.first_row}"
    width, values = query.shape[3], value.shape[3]
    if width % 8 or values != width:
        return f"heads of width {_widths(width, values)}: it takes equal ones, multiples of 8"
    if query.shape[1] % key.shape[1]:
        return f"{query.shape[1]} heads on {key.shape[1]}"
    if 0 in (*query.shape, *key.shape):
        return "there is nothing to compute"
    if key.shape[2] == 1:
        return "one key: there is no kernel for the backward"
    if call.is_causal and query.shape[2] == 1:
        return "one query that is causal"
    return _objection_to_mask(call)


def objection_of_card(
    width: int, capability: tuple[int, ...] | None, version: int | None
) -> str | None:
    """What a card and its cuDNN have against heads of a width; None if it says nothing of itself."""
    if capability is None:
        return None
    reached = [g for g in GENERATIONS if g.capability <= capability]
    if not reached:
        first = _dotted(GENERATIONS[0].capability)
        return f"compute capability {_dotted(capability)}: it is for {first} and later"
    if version is None:
        return "cuDNN was not found"
    generation = reached[-1]
    if version < generation.version:
        return (
            f"cuDNN {_release(version)}: on compute capability {_dotted(capability)} it takes "
            f"{_release(generation.version)} or later"
        )
    if width > generation.widest:
        return (
            f"heads of width {width}: on compute capability {_dotted(capability)} it takes up to "
            f"{generation.widest}"
        )
    return None


def _objection_to_mask(call: Call) -> str | None:
    mask, query, key = call.attn_bias, call.query, call.key
    if mask is None:
        return None
    if call.is_causal:
        return "a mask besides the causal one"
    if mask.dtype not in (np.dtype(np.bool_), query.dtype):
        return f"a mask of {mask.dtype} for queries of {query.dtype}: it would be rounded"
    scores = (*query.shape[:3], key.shape[2])
    if scores[2] % 2 or scores[3] % 2:
        return f"a mask of {scores[2]} queries on {scores[3]} keys: they must be even"
    shape = (1,) * (4 - mask.ndim) + mask.shape
    if len(shape) != 4 or any(n not in (1, of) for n, of in zip(shape, scores, strict=True)):
        return f"a mask of shape {list(mask.shape)}"
    needed = 2 * math.prod((*shape[:2], *scores[2:]))
    if shape[2:] != scores[2:] and needed > _MOST_EXPANDED:
        return (
            f"a mask of shape {list(mask.shape)}, which would take {needed // _MiB} MiB: "
            f"more than {_MOST_EXPANDED // _MiB}"
        )
    return None


def _widths(width: int, values: int) -> str:
    return str(width) if width == values else f"{width}, of values {values}"


def _dotted(capability: tuple[int, ...]) -> str:
    return ".".join(map(str, capability))


def _release(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}"
