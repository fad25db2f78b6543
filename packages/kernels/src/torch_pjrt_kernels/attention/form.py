"""What calls of attention differ in besides their queries, keys and values: how scores are made of products.

Suffixes of names here and in the modules beside: B batch, N key heads, G query heads that share one, H = N*G
query heads, Q queries, K keys, W width of a query, V width of a value; R = G*Q, the queries of all heads that
share a key head. A block of scores is BNGQK, its products are BNRK. There is no G where no head is shared:
XLA's CPU compiler copies whole arrays that have a dim of one between others.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

from torch_pjrt_kernels.attention.weight_dropout import kept_block

Array = jax.Array
INT32 = np.dtype(np.int32)
MINUS_INFINITY = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """How the scores of a call are made, in this order.

    scale          products are multiplied by it: a number, or a 0-d array; None: queries have been.
    soft_cap       then `soft_cap * tanh(scores / soft_cap)`: none is greater (Gemma 2).
    slopes         (H,): then the distance between the positions, times this, is taken off (ALiBi; Press et
                   al. 2022).
    bias           then it is added: 4 dims, each that of BHQK or 1; bools say which keys are seen.
    is_causal      a query sees no later key. window: and none that is more than this many positions before
                   it, or behind; None: no such bound (left, right).
    segments       (B, Q) and (B, K), integers: a query sees keys of its own segment.
    first_row      the position of the first query, where that of the first key is 0.
    sinks          (H,): a score that no key has: it takes weight and gives no value (Xiao et al. 2024).
    dropout_p      a weight becomes 0 with this probability; the others make up for it. dropout_key: what
                   decides, the same forward and backward; None where it is 0.
    part_of        where this is a part of a call, whose weights are numbered: the first batch, the first key
                   head, and how many key heads the call has.
    """

    scale: Any
    _: KW_ONLY
    soft_cap: float | None = None
    slopes: Array | None = None
    bias: Array | None = None
    is_causal: bool = False
    window: tuple[int | None, int | None] = (None, None)
    segments: tuple[Array, Array] | None = None
    first_row: int = 0
    sinks: Array | None = None
    dropout_p: float = 0.0
    dropout_key: Array | None = None
    part_of: tuple[Any, Any, int] | None = None

    @property
    def before(self) -> int | None:
        """How many positions before its own a query sees; None: all."""
        return self.window[0]

    @property
    def behind(self) -> int | None:
        """How many behind; None: all."""
        right = self.window[1]
        return (
            min(0, right)
            if self.is_causal and right is not None
            else 0
            if self.is_causal
            else right
        )

    @property
    def may_see_nothing(self) -> bool:
        """Whether a query may have no key at all, for what is known without values."""
        bounded = self.window != (None, None) or self.first_row < 0
        return self.bias is not None or self.segments is not None or bounded


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a call, and those of blocks: how many queries and keys one has.

    The arrays of a call are padded to whole blocks: `padded_queries`, `padded_keys`.
    """

    batch: int
    key_heads: int
    sharing: int
    queries: int
    keys: int
    block_queries: int
    block_keys: int

    @property
    def n_query_blocks(self) -> int:
        return -(-self.queries // self.block_queries)

    @property
    def n_key_blocks(self) -> int:
        return -(-self.keys // self.block_keys)

    @property
    def padded_queries(self) -> int:
        return self.n_query_blocks * self.block_queries

    @property
    def padded_keys(self) -> int:
        return self.n_key_blocks * self.block_keys

    @property
    def heads(self) -> tuple[int, ...]:
        """The dims of an array that come before queries: BNG, or BN."""
        heads = (self.batch, self.key_heads)
        return heads if self.sharing == 1 else (*heads, self.sharing)

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of a block of them: BNGQK."""
        return (*self.heads, self.block_queries, self.block_keys)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Which blocks of keys a block of queries looks at: `first` to `end`, of which it sees those from
    `seen_first` to `seen_end` as a whole. Only the others are masked.
    """

    first: Any
    seen_first: Any
    seen_end: Any
    end: Any


def ranges(form: Form, sizes: Sizes, block: Array) -> Ranges:
    """The ranges of the `block`-th block of queries; what no query of the call needs is a constant."""
    size, zero = sizes.block_keys, np.int32(0)
    earliest = block * np.int32(sizes.block_queries) + np.int32(form.first_row)
    latest = earliest + np.int32(sizes.block_queries - 1)
    first: Any = zero
    seen_first: Any = zero
    end: Any = np.int32(sizes.n_key_blocks)
    seen_end: Any = np.int32(sizes.keys // size)
    if form.behind is not None:
        behind = np.int32(form.behind)
        end = _least(end, _floor(latest + behind, size) + np.int32(1))
        seen_end = _least(seen_end, _floor(earliest + behind + np.int32(1), size))
    if form.before is not None:
        before = np.int32(form.before)
        first = _greatest(first, _floor(earliest - before, size))
        seen_first = _greatest(seen_first, _floor(latest - before + np.int32(size - 1), size))
    end = _greatest(end, first)
    seen_first = _least(_greatest(seen_first, first), end)
    return Ranges(first, seen_first, _least(_greatest(seen_end, seen_first), end), end)


def _least(x: Any, y: Any) -> Any:
    """The lesser; a NumPy number if both are."""
    return min(x, y) if _are_known(x, y) else lax.min(x, y)


def _greatest(x: Any, y: Any) -> Any:
    return max(x, y) if _are_known(x, y) else lax.max(x, y)


def _are_known(*numbers: Any) -> bool:
    return all(isinstance(n, np.generic) for n in numbers)


def _floor(x: Array, divisor: int) -> Array:
    """`x // divisor`, also of a negative `x`."""
    by = np.int32(divisor)
    return lax.div(x - lax.rem(lax.rem(x, by) + by, by), by)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A block of scores: the first query's and the first key's number, and whether some are to be masked."""

    form: Form
    sizes: Sizes
    first_query: Array
    first_key: Array
    masked: bool

    def scores(self, products_BNRK: Array) -> tuple[Array, Array | None]:
        """The scores, and what a score grows with its product besides `scale` (None: 1)."""
        form = self.form
        scores = lax.reshape(products_BNRK, self.sizes.scores)
        dtype = scores.dtype
        if form.scale is not None:
            scores = scores * lax.convert_element_type(form.scale, dtype)
        growth = None
        if form.soft_cap is not None:
            bent = lax.tanh(scores / np.asarray(form.soft_cap, dtype))
            scores, growth = bent * np.asarray(form.soft_cap, dtype), 1 - bent * bent
        if form.slopes is not None:
            distance = lax.convert_element_type(lax.abs(self._rows() - self._columns()), dtype)
            slopes = lax.convert_element_type(_of_heads(form.slopes, self.sizes), dtype)
            scores = scores - slopes * distance
        seen = self._seen() if self.masked else None
        if form.bias is not None:
            bias = self.of_bias(form.bias)
            if bias.dtype == np.bool_:
                seen = bias if seen is None else seen & bias
            else:
                scores = scores + lax.convert_element_type(bias, dtype)
        if form.segments is not None:
            same = self._in_one_segment(*form.segments)
            seen = same if seen is None else seen & same
        if seen is not None:
            hidden = lax.full_like(scores, MINUS_INFINITY)
            seen = lax.broadcast_in_dim(seen, scores.shape, range(scores.ndim))
            scores = lax.select(seen, scores, hidden)
        return scores, growth

    def dropped(self, weights: Array) -> Array:
        """Weights, 0 where they are dropped. The others are not made greater here."""
        form, sizes = self.form, self.sizes
        if form.dropout_key is None:
            return weights
        batch, head, key_heads = form.part_of or (0, 0, sizes.key_heads)
        shared = sizes.heads[2:]
        kept = kept_block(
            form.dropout_key,
            form.dropout_p,
            (key_heads, *shared, sizes.queries, sizes.keys),
            (batch, head, *(0 for _ in shared), self.first_query, self.first_key),
            sizes.scores,
        )
        return lax.select(kept, weights, lax.full_like(weights, 0))

    def of_bias(self, bias: Array) -> Array:
        """The part of something of 4 dims, each that of BHQK or 1, whose dims are those of BNGQK or 1."""
        sizes = self.sizes
        if bias.shape[2] != 1:
            bias = lax.dynamic_slice_in_dim(bias, self.first_query, sizes.block_queries, 2)
        if bias.shape[3] != 1:
            bias = lax.dynamic_slice_in_dim(bias, self.first_key, sizes.block_keys, 3)
        b, h, q, k = bias.shape
        of_heads = sizes.heads[1:]
        return lax.reshape(bias, (b, *((1,) * len(of_heads) if h == 1 else of_heads), q, k))

    def _rows(self) -> Array:
        ones = (1,) * len(self.sizes.heads)
        rows = lax.broadcasted_iota(INT32, (*ones, self.sizes.block_queries, 1), len(ones))
        return rows + (self.first_query + np.int32(self.form.first_row))

    def _columns(self) -> Array:
        ones = (1,) * (len(self.sizes.heads) + 1)
        columns = lax.broadcasted_iota(INT32, (*ones, self.sizes.block_keys), len(ones))
        return columns + self.first_key

    def _seen(self) -> Array | None:
        """QK behind ones; None where all are."""
        form, rows, columns = self.form, self._rows(), self._columns()
        seen = None
        if self.sizes.padded_keys != self.sizes.keys:
            seen = columns < np.int32(self.sizes.keys)
        if form.behind is not None:
            here = columns <= rows + np.int32(form.behind)
            seen = here if seen is None else seen & here
        if form.before is not None:
            here = columns >= rows - np.int32(form.before)
            seen = here if seen is None else seen & here
        return seen

    def _in_one_segment(self, of_queries: Array, of_keys: Array) -> Array:
        sizes = self.sizes
        rows = lax.dynamic_slice_in_dim(of_queries, self.first_query, sizes.block_queries, 1)
        columns = lax.dynamic_slice_in_dim(of_keys, self.first_key, sizes.block_keys, 1)
        n = len(sizes.heads)
        ones = tuple(range(1, n))
        return lax.expand_dims(rows, (*ones, n + 1)) == lax.expand_dims(columns, (*ones, n))


def _of_heads(x_H: Array, sizes: Sizes) -> Array:
    return lax.reshape(x_H, (1, *sizes.heads[1:], 1, 1))


def of_heads(x_H: Array, sizes: Sizes, dtype: np.dtype) -> Array:
    """One number for each query head, to stand beside a block's queries: NG between ones."""
    return lax.convert_element_type(_of_heads(x_H, sizes), dtype)
