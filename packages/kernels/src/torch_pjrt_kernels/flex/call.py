"""A call of flex attention: what its node knows besides arrays, and the rules of it and of its backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_pjrt.plugin import Graph
from torch_pjrt_kernels.attention.form import INT32, Sizes
from torch_pjrt_kernels.flex.backward import Given, backward
from torch_pjrt_kernels.flex.block import Mods
from torch_pjrt_kernels.flex.forward import forward
from torch_pjrt_kernels.flex.mods import all_as_jax, as_jax
from torch_pjrt_kernels.flex.visits import Table, table_of

Array = jax.Array


class Call(NamedTuple):
    """Plain numbers, which are a part of the program's key on disk.

    sizes     the fields of a `Sizes`.
    sparse    how many queries and keys one block of the mask has; None: it has none.
    n_table   how many arrays say what the mask hides: 0, 2 or 4.
    n_score, n_mask, n_gradient    how many arrays the functions read.
    scale     of the products.
    of_read   a position for each array that the score's function reads and whose gradient is wanted.
    """

    sizes: tuple[int, ...]
    sparse: tuple[int, int] | None
    n_table: int
    n_score: int
    n_mask: int
    n_gradient: int
    scale: float
    of_read: tuple[int, ...] = ()


class _Arrays(NamedTuple):
    """What the arrays of a node are, after the first ones."""

    table: tuple[Array, ...]
    score: tuple[Array, ...]
    mask: tuple[Array, ...]
    gradient: tuple[Array, ...]


def attended(
    call: Call, score: Graph | None, mask: Graph | None, *arrays: Array
) -> Sequence[Array]:
    """Output, logsumexp and greatest scores of query, key, value and what else the call reads."""
    query, key, value, *rest = arrays
    given, sizes = _sorted(call, rest), Sizes(*call.sizes)

    def of_batches(batch: Array, table: Any, *qkv: Array) -> Sequence[Array]:
        mods = Mods(as_jax(score, given.score), as_jax(mask, given.mask))
        q, k, v = qkv
        n = sizes_of_part(sizes, q.shape[0])
        return forward(q, k, v, call.scale, mods, _table(call, table, n), n, batch)

    if not _is_by_batch(given.table):
        return of_batches(lax.iota(INT32, query.shape[0]), given.table, query, key, value)

    def one(unused: Any, x: Any) -> Any:
        number, table, qkv = x
        return unused, of_batches(number[None], _one(table), *(y[None] for y in qkv))

    numbers = lax.iota(INT32, query.shape[0])
    _, found = lax.scan(one, (), (numbers, given.table, (query, key, value)))
    return [x.reshape(-1, *x.shape[2:]) for x in found]


def pulled_back(
    call: Call, score: Graph | None, mask: Graph | None, gradient: Graph | None, *arrays: Array
) -> Sequence[Array]:
    """The gradients of query, key, value, and of what the score's function reads.

    arrays   query, key, value, output, its gradient, logsumexp, its gradient; then what else the call reads.
    """
    query, key, value, out, grad_out, logsumexp, grad_logsumexp, *rest = arrays
    given, sizes = _sorted(call, rest), Sizes(*call.sizes)
    read = tuple(given.score[i] for i in call.of_read)

    def of_batches(batch: Array, table: Any, *these: Array) -> tuple[Array, ...]:
        mods = Mods(
            as_jax(score, given.score),
            as_jax(mask, given.mask),
            None if gradient is None else all_as_jax(gradient, given.gradient),
            tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in read),
        )
        q, k, v, o, g, lse, of_lse = these
        n = sizes_of_part(sizes, q.shape[0])
        of = Given(q, k, v, o, lse, g, of_lse)
        return backward(of, call.scale, mods, _table(call, table, n), n, batch)

    these = (query, key, value, out, grad_out, logsumexp, grad_logsumexp)
    numbers = lax.iota(INT32, query.shape[0])
    if not _is_by_batch(given.table):
        found = of_batches(numbers, given.table, *these)
        return *found[:3], *(x.astype(y.dtype) for x, y in zip(found[3:], read, strict=True))

    def one(sums: Any, x: Any) -> Any:
        number, table, each = x
        new = of_batches(number[None], _one(table), *(y[None] for y in each))
        return [a + b for a, b in zip(sums, new[3:], strict=True)], tuple(new[:3])

    wide = np.float64 if query.dtype == np.float64 else np.float32
    zeros = [jnp.zeros(x.shape, wide) for x in read]
    sums, found = lax.scan(one, zeros, (numbers, given.table, these))
    of_qkv = [x.reshape(-1, *x.shape[2:]) for x in found]
    return *of_qkv, *(x.astype(y.dtype) for x, y in zip(sums, read, strict=True))


def sizes_of_part(sizes: Sizes, batch: int) -> Sizes:
    """The sizes of so many batches of a call."""
    return Sizes(
        batch, sizes.key_heads, sizes.sharing, sizes.queries, sizes.keys,
        sizes.block_queries, sizes.block_keys,
    )  # fmt: skip


def _sorted(call: Call, rest: Sequence[Array]) -> _Arrays:
    arrays: Iterator[Array] = iter(rest)
    counts = (call.n_table, call.n_score, call.n_mask, call.n_gradient)
    return _Arrays(*(tuple(islice(arrays, n)) for n in counts))


def _is_by_batch(table: tuple[Array, ...]) -> bool:
    """Whether each batch has a table of its own: then it is computed by itself, and no more is visited."""
    return bool(table) and table[0].shape[0] > 1


def _one(table: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(x[None] for x in table)


def _table(call: Call, table: tuple[Array, ...], sizes: Sizes) -> Table | None:
    if call.sparse is None or not table:
        return None
    return table_of((*table, None, None)[:4], call.sparse, sizes)
