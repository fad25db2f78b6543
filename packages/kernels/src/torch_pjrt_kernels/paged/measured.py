"""How many queries and positions of pages are computed at once: what was measured for a call, or is usual."""

from __future__ import annotations

from typing import NamedTuple

from torch_pjrt.plugin import client
from torch_pjrt_kernels.table import Blocks, pair_of

# Of few tokens most are single ones, of sequences of their own: a block of them reads all their pages.
_FEW_TOKENS, _QUERIES_OF_FEW, _QUERIES, _KEYS = 128, 8, 64, 512
_PAGES_OF_KERNEL, _QUERIES_OF_KERNEL = 16, 32


class Serving(NamedTuple):
    """A call on a cache in pages, by its shapes.

    tokens      of all sequences together. positions: the most that the table has for one sequence.
    """

    tokens: int
    sequences: int
    positions: int
    heads: int
    key_heads: int
    width: int
    page_size: int
    dtype: str = "float32"


def entry_of(what: str, call: Serving) -> str:
    """The name of an entry of the chip at work."""
    return (
        f"{client().chip.device_kind} {what} in {call.dtype} {call.heads}/{call.key_heads} "
        f"{call.tokens} on {call.sequences}x{call.positions} {call.width}, pages of {call.page_size}"
    )


def usual_blocks(call: Serving) -> Blocks:
    """Queries and positions of a block, of ragged attention in blocks."""
    return _QUERIES if call.tokens > _FEW_TOKENS else _QUERIES_OF_FEW, _KEYS


def blocks_of(call: Serving) -> Blocks:
    """Those that were measured, or are usual."""
    return pair_of(lambda: entry_of("ragged attention", call)) or usual_blocks(call)


def usual_step(call: Serving) -> Blocks:
    """How many queries a sequence has, and how many positions a step of paged attention takes."""
    return max(call.tokens // max(call.sequences, 1), 1), _KEYS


def step_of(call: Serving) -> int:
    """The positions of a step that were measured, or are usual."""
    return (pair_of(lambda: entry_of("paged attention", call)) or usual_step(call))[1]


def usual_blocks_of_kernel(call: Serving) -> Blocks:
    """Queries and pages of a block, of JAX's kernel for TPUs."""
    return _QUERIES_OF_KERNEL, _PAGES_OF_KERNEL


def blocks_of_kernel(call: Serving) -> Blocks:
    """Those that were measured, or are usual."""
    return pair_of(lambda: entry_of("ragged kernel", call)) or usual_blocks_of_kernel(call)
