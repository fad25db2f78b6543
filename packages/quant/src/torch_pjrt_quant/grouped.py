"""Products with weights that have a scale for each group of columns, as TPUs compute them.

A loop over tiles of the weight reads all of it in each of its steps there, and a reshape of columns into
groups is a copy. So columns stay where they are, the low and the high halves of packed numbers are multiplied
apart, and

    a few rows    are spread out, one for each group, with zeros beside it: a product with the numbers as they
                  are, which are widened on their way in, has a sum for each group, and scales come last
    more          are multiplied by parts of the weight, with scales spread over columns

On several chips a few rows go the second way, too: of a weight whose columns are spread, the first would have
all of it gathered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torch_pjrt.extend import program_chips
from torch_pjrt_quant.packing import NF4

Array = jax.Array
# Of the tensors of a weight: its numbers in float32, by halves of each group, then scales, then zeros.
Numbers = Callable[..., tuple[list[Array], Array, Array | None]]

# So many rows are spread out.
FEW_ROWS = 16
# A part of the weight has about so many numbers, and there are at most so many parts.
PART, MOST_PARTS = 1 << 23, 16


def of_int8(weight: Array, scale: Array) -> tuple[list[Array], Array, Array | None]:
    """Of int8 or float8, with scales rows x groups."""
    return [weight.astype(jnp.float32)], scale, None


def of_int4(
    packed: Array, scale: Array, zero: Array | None = None
) -> tuple[list[Array], Array, Array | None]:
    halves = [n.astype(jnp.int32).astype(jnp.float32) for n in (packed & 15, packed >> 4)]
    return halves, scale, jnp.full_like(scale, 8) if zero is None else zero


def of_nf4(packed: Array, scale: Array) -> tuple[list[Array], Array, Array | None]:
    return [nf4_values(packed & 15), nf4_values(packed >> 4)], scale, None


def nf4_values(numbers: Array) -> Array:
    """The value of each number from 0 to 15, chosen bit by bit: a TPU looks up one at a time."""
    numbers = numbers.astype(jnp.int32)
    values = [jnp.float32(v) for v in NF4]
    for bit in range(4):
        is_set = (numbers >> bit) & 1 == 1
        values = [jnp.where(is_set, values[n + 1], values[n]) for n in range(0, len(values), 2)]
    return values[0]


def grouped(x: Array, parts: Sequence[Array], numbers: Numbers) -> Array:
    """`x` (rows, columns) by a weight of `parts`: float32 (rows, weight's rows)."""
    if isinstance(x.shape[0], int) and x.shape[0] <= FEW_ROWS and program_chips() == 1:
        return _spread(x, *numbers(*parts))
    n = parts[0].shape[0]
    ways = next(w for w in (16, 8, 4, 2, 1) if n % w == 0)
    count = min(max(n * x.shape[1] // PART, 1), MOST_PARTS, n // ways)
    ends = [n // ways * i // count for i in range(count + 1)]
    dealt = [p.reshape(ways, n // ways, -1) for p in parts]
    found = []
    for begin, end in itertools.pairwise(ends):
        part = [p[:, begin:end].reshape(-1, p.shape[-1]) for p in dealt]
        y = _by_columns(x, *numbers(*part))
        found.append(y.reshape(x.shape[0], ways, end - begin))
    return jnp.concatenate(found, -1).reshape(x.shape[0], n)


def _halves(x: Array, groups: int, count: int) -> list[Array]:
    """Columns of `x` that belong to the halves: rows x groups x columns of a half."""
    whole = x.reshape(x.shape[0], groups, count, x.shape[1] // groups // count)
    return [whole[:, :, n] for n in range(count)]


def _product(x: Array, weight: Array) -> Array:
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


def _spread(x: Array, halves: list[Array], scale: Array, zero: Array | None) -> Array:
    rows, groups = x.shape[0], scale.shape[1]
    own = jnp.eye(groups, dtype=bool)[None, :, :, None]
    sums = jnp.zeros((rows * groups, len(scale)), jnp.float32)
    for part, numbers in zip(_halves(x, groups, len(halves)), halves, strict=True):
        alone = jnp.where(own, part[:, None], 0).reshape(rows * groups, numbers.shape[1])
        sums = sums + _product(alone, numbers.astype(x.dtype))
    sums = sums.reshape(rows, groups, len(scale))
    if zero is not None:
        inputs = x.astype(jnp.float32).reshape(rows, groups, x.shape[1] // groups).sum(-1)
        sums = sums - zero.astype(jnp.float32).T * inputs[:, :, None]
    return (sums * scale.astype(jnp.float32).T).sum(1)


def _by_columns(x: Array, halves: list[Array], scale: Array, zero: Array | None) -> Array:
    def spread(values: Array, like: Array) -> Array:
        values = values.astype(jnp.float32)
        each = like.shape[1] // values.shape[1]
        return jnp.broadcast_to(values[:, :, None], (*values.shape, each)).reshape(like.shape)

    y = jnp.zeros((x.shape[0], len(scale)), jnp.float32)
    for part, numbers in zip(_halves(x, scale.shape[1], len(halves)), halves, strict=True):
        wide = numbers if zero is None else numbers - spread(zero, numbers)
        wide = (wide * spread(scale, numbers)).astype(x.dtype)
        y = y + _product(part.reshape(x.shape[0], numbers.shape[1]), wide)
    return y
