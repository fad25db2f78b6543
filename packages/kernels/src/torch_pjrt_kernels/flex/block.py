"""A block of scores that functions change and hide: what they are called with.

Suffixes of names are those of `attention/form.py`; M and N of functions are positions of queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt_kernels.attention.form import INT32, MINUS_INFINITY, Sizes
from torch_pjrt_kernels.flex.visits import SEEN, Table

Array = jax.Array


@dataclass(frozen=True, slots=True, eq=False)
class Mods:
    """What is done with scores.

    score     of scores (BHQK) and the numbers of batches (B), heads (H), queries (Q) and keys (K), int32: the
              scores that count. None: the same.
    mask      of these numbers: which keys are seen, BHQK. None: all.
    gradient  of the scores, these numbers, and the gradient of what `score` gives: that of the scores, and of
              what `score` reads besides, summed.
    read      shapes and dtypes of the latter.
    """

    score: Callable[..., Array] | None = None
    mask: Callable[..., Array] | None = None
    gradient: Callable[..., tuple[Array, ...]] | None = None
    read: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block of scores: the first query's and first key's number, and whether some are to be masked.

    batch   the numbers of its batches.
    """

    mods: Mods
    sizes: Sizes
    table: Table | None
    batch: Array
    first_query: Array
    first_key: Array
    masked: bool

    def scores(self, products_BNRK: Array, scale: Any) -> tuple[Array, Array, Array | None]:
        """The scores as they were (BHQK), those that count (BNGQK), and which are seen (None: all)."""
        sizes = self.sizes
        heads = (sizes.batch, sizes.key_heads * sizes.sharing)
        plain = lax.reshape(products_BNRK, (*heads, *sizes.scores[-2:]))
        plain = plain * lax.convert_element_type(scale, plain.dtype)
        scores = plain
        if self.mods.score is not None:
            scores = lax.convert_element_type(self.mods.score(plain, *self.numbers()), plain.dtype)
        seen = self._seen()
        if seen is not None:
            seen = lax.broadcast_in_dim(seen, scores.shape, range(4))
            scores = lax.select(seen, scores, lax.full_like(scores, MINUS_INFINITY))
        return plain, lax.reshape(scores, sizes.scores), seen

    def numbers(self) -> tuple[Array, ...]:
        """Of batches, heads, queries and keys. Those that fill up a block are the last one's."""
        sizes = self.sizes
        heads = lax.iota(INT32, sizes.key_heads * sizes.sharing)
        queries = lax.iota(INT32, sizes.block_queries) + self.first_query
        keys = lax.iota(INT32, sizes.block_keys) + self.first_key
        return (
            self.batch,
            heads,
            lax.min(queries, np.int32(sizes.queries - 1)),
            lax.min(keys, np.int32(sizes.keys - 1)),
        )

    def _seen(self) -> Array | None:
        """BHQK, each or 1; None: all."""
        if not self.masked:
            return None
        sizes, seen = self.sizes, None
        if self.mods.mask is not None:
            seen = self.mods.mask(*self.numbers())
        if self.table is not None:
            states = self.table.of(self.first_query, self.first_key, sizes)
            whole = states == np.int32(SEEN)
            some = states > np.int32(0)
            seen = some if seen is None else whole | (some & seen)
        if sizes.padded_keys != sizes.keys:
            keys = lax.broadcasted_iota(INT32, (1, 1, 1, sizes.block_keys), 3) + self.first_key
            here = keys < np.int32(sizes.keys)
            seen = here if seen is None else seen & here
        return seen
