"""Lowerings of the attention that PyTorch leaves to backends such as this one, and of its backward.

What the two rules share:
    dims        batch, heads, sequence, width, or the last three; key and value may have fewer
                heads, and then consecutive query heads share one.
    attn_bias   is added to the scores; one of bools says which keys a query may look at. A query that
                may look nowhere gets zeros.
    softmax     runs in float32, float64 for float64 inputs.
    dropout     of the weights. The backward draws the mask anew: `philox_seed` carries the key.
    memory      the backward computes the weights again from query and key. In one program with the
                forward, that is the same computation, and XLA does it once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax import lax

from torch_pjrt import dtypes
from torch_pjrt.lowering.dropout import kept
from torch_pjrt.lowering.promote import as_dtype, opmath
from torch_pjrt.lowering.table import LoweringTable
from torch_pjrt.overloads import aten

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Integer, Key

Array = jax.Array

table = LoweringTable("attention")

# It is broadcast to the scores, if there is one.
Bias: TypeAlias = """(
    Float[Array, '*#batch #heads #queries #keys'] | Float[Array, '#queries #keys']
    | Bool[Array, '*#batch #heads #queries #keys'] | Bool[Array, '#queries #keys'] | None
)"""


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """A call of attention: the operator's arguments in its order, after the key that dropout draws with.

    first_row   which query of a causal attention the first one is; PyTorch knows only 0.

    dropout_p   with which probability a weight is dropped, by `dropout_key`; 0: none is.
    scale       what scores are multiplied with; None: 1 / sqrt(width).

        >>> x = jnp.ones((1, 2, 3, 4))  # one batch, two heads, three queries and keys, width 4
        >>> with x64():  # of `torch_pjrt.extend`; rules are traced within it
        ...     out, logsumexp, *_ = attention(Attention(None, x, x, x, is_causal=True))
        >>> out.shape, logsumexp.shape
        ((1, 2, 3, 4), (1, 2, 3))
    """

    dropout_key: Key[Array, ""] | None
    query: Float[Array, "*batch heads queries width"]
    key: Float[Array, "*batch key_heads keys width"]
    value: Float[Array, "*batch key_heads keys value_width"]
    attn_bias: Bias = None
    dropout_p: float = 0.0
    is_causal: bool = False
    return_debug_mask: bool = False
    _: KW_ONLY
    scale: Any = None
    first_row: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBackward:
    """A call of its backward: the operator's arguments in its order.

    first_row   as in `Attention`.

    max_q, max_k    how many queries and keys there are.
    dropout_p       with which probability weights were dropped; `philox_seed` is the forward's.

        >>> x = jnp.ones((1, 2, 3, 4))
        >>> with x64():
        ...     out, logsumexp, *rest = attention(Attention(None, x, x, x))
        >>> wanted = (True, True, True, False)
        >>> call = AttentionBackward(
        ...     x, x, x, x, None, wanted, out, logsumexp, None, None, 3, 3, 0.0, False, *rest[4:6]
        ... )
        >>> [g.shape for g in attention_backward(call)[:3]]
        [(1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4)]
    """

    grad_out: Float[Array, "*batch heads queries value_width"]
    query: Float[Array, "*batch heads queries width"]
    key: Float[Array, "*batch key_heads keys width"]
    value: Float[Array, "*batch key_heads keys value_width"]
    attn_bias: Bias
    grad_input_mask: Sequence[bool]
    out: Float[Array, "*batch heads queries value_width"]
    logsumexp: Float[Array, "flat_batch heads queries"]
    cum_seq_q: None
    cum_seq_k: None
    max_q: int
    max_k: int
    dropout_p: float
    is_causal: bool
    philox_seed: Integer[Array, ""]
    philox_offset: Integer[Array, ""]
    _: KW_ONLY
    scale: Any = None
    first_row: int = 0


# Suffixes of names: B batch, H query heads, N key heads, Q queries, R queries of all heads that
# share a key head, K keys, W width.


def _product(x: Array, y: Array, x_dim: int, y_dim: int) -> Array:
    """Products of matrices, one for each batch and key head, summed as softmax is."""
    dims = (((x_dim,), (y_dim,)), ((0, 1), (0, 1)))
    return lax.dot_general(x, y, dims, preferred_element_type=opmath(x.dtype))


def over_rows(x: Array, y: Array) -> Array:
    """The products of `x` transposed with `y`: a sum over the rows of both.

    >>> over_rows(jnp.ones((1, 2, 5, 3)), jnp.ones((1, 2, 5, 4))).shape
    (1, 2, 3, 4)
    """
    return _product(x, y, 2, 2)


def _batched(x: Array) -> Array:
    return x if x.ndim == 4 else lax.expand_dims(x, (0,))


def _shared(x_BHQW: Array, n_heads: int) -> Array:
    """Query heads that share a key head laid one after the other: BNRW."""
    b, h, q, w = x_BHQW.shape
    return x_BHQW if h == n_heads else lax.reshape(x_BHQW, (b, n_heads, h // n_heads * q, w))


def _exponentials(
    call: Attention | AttentionBackward,
) -> tuple[Array, Array, Array]:
    """The softmax's numerators, their sum over keys, and the greatest score: BHQK, BHQ1, BHQ1."""
    query_BHQW, key_BNKW, attn_bias = _batched(call.query), _batched(call.key), call.attn_bias
    b, h, q, w = query_BHQW.shape
    k = key_BNKW.shape[2]
    scores = _product(_shared(query_BHQW, key_BNKW.shape[1]), key_BNKW, 3, 3)
    scores = lax.reshape(scores, (b, h, q, k))
    scores = scores * as_dtype(1 / math.sqrt(w) if call.scale is None else call.scale, scores.dtype)
    if attn_bias is not None:
        bias = lax.expand_dims(attn_bias, range(4 - attn_bias.ndim))
        if bias.dtype == np.bool_:
            seen = lax.broadcast_in_dim(bias, scores.shape, range(4))
            scores = lax.select(seen, scores, lax.full_like(scores, -math.inf))
        else:
            scores = scores + as_dtype(bias, scores.dtype)
    if call.is_causal:
        int32 = np.dtype(np.int32)
        row = lax.broadcasted_iota(int32, (q, k), 0) + np.int32(call.first_row)
        seen = row >= lax.broadcasted_iota(int32, (q, k), 1)
        zero = lax.full((q, k), 0, scores.dtype)
        bias = lax.select(seen, zero, lax.full_like(zero, -math.inf))
        scores = scores + lax.expand_dims(bias, (0, 1))
    greatest = lax.expand_dims(lax.reduce_max(scores, (3,)), (3,))
    shift = greatest
    if attn_bias is not None:  # a query that may look nowhere must not be shifted by infinity
        shift = lax.select(greatest == -math.inf, lax.full_like(greatest, 0), greatest)
    numerators = lax.exp(scores - shift)
    total = lax.expand_dims(lax.reduce_sum(numerators, (3,)), (3,))
    return numerators, total, greatest


def _divisor(total: Array, attn_bias: Array | None, dropout_p: float) -> Array:
    """What weighted sums are divided by: 1 for a query that may look nowhere."""
    if attn_bias is not None:
        total = lax.select(total == 0, lax.full_like(total, 1), total)
    return total if dropout_p == 0 else total * (1 - dropout_p)


def _dropped(x: Array, key: Array | None, dropout_p: float) -> Array:
    if key is None:
        return x
    return lax.select(kept(key, x.shape, dropout_p), x, lax.full_like(x, 0))


def seed_of(key: Array) -> Array:
    """The key as the integer that the backward is given; where integers have 32 bits, half of it.

    key   of JAX's kind `threefry2x32`, without dims; so is the result, an int64 or int32.

        >>> with x64():
        ...     seed_of(jax.random.key(7))
        Array(30064771072, dtype=int64)
    """
    words = jax.random.key_data(key)
    if dtypes.are_wide():
        return lax.bitcast_convert_type(words, np.dtype(np.int64))
    return lax.convert_element_type(words[0] ^ words[1], np.dtype(np.int32))


def key_of(seed: Array) -> Array:
    """The key that an integer of `seed_of` stands for.

    seed   without dims; so is the key.

        >>> with x64():
        ...     jax.random.key_data(key_of(seed_of(jax.random.key(7))))
        Array([0, 7], dtype=uint32)
    """
    words = lax.bitcast_convert_type(seed, np.dtype(np.uint32))
    if not dtypes.are_wide():
        words = lax.concatenate([lax.full((1,), 0, words.dtype), lax.expand_dims(words, (0,))], 0)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    random="dropout_p",
    static=("dropout_p",),
    call=Attention,
)
def scaled_dot_product_attention(
    call: Attention,
) -> tuple[
    Float[Array, "*batch heads queries value_width"],
    Float[Array, "flat_batch heads queries"],
    None,
    None,
    int,
    int,
    Integer[Array, ""],
    Integer[Array, ""],
    None,
]:
    """Output, logsumexp of the scores, and what the backward needs to drop the same weights.

    >>> x = jnp.zeros((1, 1, 2, 4))
    >>> with x64():
    ...     attention(Attention(None, x, x, x))[1]  # of two scores, 0 each
    Array([[[0.6931472, 0.6931472]]], dtype=float32)
    """
    query, key, value, key_ = call.query, call.key, call.value, call.dropout_key
    q, v = _batched(query), _batched(value)
    if key_ is not None and not dtypes.are_wide():
        key_ = key_of(seed_of(key_))
    numerators, total, greatest = _exponentials(call)
    weights = as_dtype(_dropped(numerators, key_, call.dropout_p), v.dtype)
    out = _product(_shared(weights, v.shape[1]), v, 3, 2)
    out = lax.reshape(out, (*q.shape[:3], v.shape[3]))
    # Dividing sums over keys takes less than dividing each weight.
    out = as_dtype(out / _divisor(total, call.attn_bias, call.dropout_p), query.dtype)
    out = lax.reshape(out, (*query.shape[:-1], value.shape[-1]))
    logsumexp = as_dtype(greatest + lax.log(total), np.dtype(np.float32))
    int64 = np.dtype(np.int64)
    if key_ is None:
        seed = lax.full((), 0, int64)
    else:
        seed = seed_of(key_)
    return (
        out,
        lax.squeeze(logsumexp, (3,)),
        None,
        None,
        query.shape[-2],
        key.shape[-2],
        seed,
        lax.full((), 0, int64),
        None,
    )


@table.lowers(
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    static=("dropout_p",),
    call=AttentionBackward,
)
def scaled_dot_product_attention_backward(
    call: AttentionBackward, over_rows: Callable[[Array, Array], Array] = over_rows
) -> tuple[
    Float[Array, "*batch heads queries width"],
    Float[Array, "*batch key_heads keys width"],
    Float[Array, "*batch key_heads keys value_width"],
    Bias,
]:
    """All gradients, as PyTorch's meta function says: XLA drops those that nobody reads.

    over_rows   how a device multiplies there.

        >>> x = jnp.ones((1, 1, 2, 4))
        >>> with x64():
        ...     out, logsumexp, *rest = attention(Attention(None, x, x, x))
        >>> wanted = (True, True, True, False)
        >>> call = AttentionBackward(
        ...     x, x, x, x, None, wanted, out, logsumexp, None, None, 2, 2, 0.0, False, *rest[4:6]
        ... )
        >>> grad_query, grad_key, grad_value, grad_bias = attention_backward(call)
        >>> float(grad_value.sum()), grad_bias is None
        (8.0, True)
    """
    query, key, value, attn_bias = call.query, call.key, call.value, call.attn_bias
    q, k, v, grad, y = (_batched(x) for x in (query, key, value, call.grad_out, call.out))
    numerators, total, _ = _exponentials(call)
    divisor = _divisor(total, attn_bias, call.dropout_p)
    random_key = None
    if call.dropout_p:
        random_key = key_of(call.philox_seed)
    grad = as_dtype(grad, numerators.dtype)
    along = lax.reduce_sum(grad * as_dtype(y, grad.dtype), (3,))
    along = lax.expand_dims(along, (3,)) / _divisor(total, attn_bias, 0)
    share = as_dtype(grad / divisor, value.dtype)

    n = v.shape[1]
    weights = as_dtype(_dropped(numerators, random_key, call.dropout_p), value.dtype)
    grad_value = over_rows(_shared(weights, n), _shared(share, n))
    grad_weights = lax.reshape(_product(_shared(share, n), v, 3, 3), numerators.shape)
    grad_scores = numerators * (_dropped(grad_weights, random_key, call.dropout_p) - along)

    narrow = _shared(as_dtype(grad_scores, query.dtype), n)
    factor = as_dtype(1 / math.sqrt(q.shape[3]) if call.scale is None else call.scale, grad.dtype)
    grad_query = _product(narrow, k, 3, 2) * factor
    grad_key = over_rows(narrow, _shared(q, n)) * factor
    grad_bias = None
    if attn_bias is not None and attn_bias.dtype == np.bool_:
        grad_bias = lax.full_like(attn_bias, False)
    elif attn_bias is not None:
        grad_bias = _summed_to(grad_scores, attn_bias.shape)
        grad_bias = as_dtype(grad_bias, attn_bias.dtype)
    return (
        as_dtype(lax.reshape(grad_query, query.shape), query.dtype),
        as_dtype(lax.reshape(grad_key, key.shape), key.dtype),
        as_dtype(lax.reshape(grad_value, value.shape), value.dtype),
        grad_bias,
    )


def _summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` summed over the dims along which something of `shape` was broadcast."""
    padded = (1,) * (x.ndim - len(shape)) + shape
    axes = tuple(d for d in range(x.ndim) if padded[d] == 1 != x.shape[d])
    return lax.reshape(lax.reduce_sum(x, axes) if axes else x, shape)
