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


def usual(what: str, call: Serving) -> Blocks:
    """Queries and positions that are computed at once, by what computes them.

    "ragged attention"   of a block.
    "paged attention"    how many queries a sequence has, and how many positions a step takes.
    "ragged kernel"      queries and pages of a block, of JAX's kernel for TPUs.
    """
    if what == "ragged attention":
        return _QUERIES if call.tokens > _FEW_TOKENS else _QUERIES_OF_FEW, _KEYS
    if what == "paged attention":
        return max(call.tokens // max(call.sequences, 1), 1), _KEYS
    return _QUERIES_OF_KERNEL, _PAGES_OF_KERNEL


def chosen(what: str, call: Serving) -> Blocks:
    """Those that were measured, or are usual."""
    return pair_of(lambda: entry_of(what, call)) or usual(what, call)
