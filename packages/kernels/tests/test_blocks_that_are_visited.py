"""Blocks of keys are visited where some query of a block sees one of them, and nowhere else."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from torch_pjrt_kernels.attention.form import Sizes
from torch_pjrt_kernels.flex.varlen import intervals, table_of_intervals
from torch_pjrt_kernels.flex.visits import visits_of

Shown = tuple[np.ndarray, np.ndarray]
N_SEQUENCES, N_QUERIES, MOST = 6, 45, 64


@partial(jax.jit, static_argnums=(2,))
def _visits(first: Any, end: Any, sizes: Sizes) -> Any:
    return visits_of(table_of_intervals((first, end), sizes), sizes, masks=True)


@partial(jax.jit, static_argnums=(3, 4, 5))
def _intervals(
    starts_q: Any, starts_k: Any, used: Any, n: int, is_causal: bool, window: Any
) -> Any:
    return intervals(n, starts_q, starts_k, used, is_causal, window)


def visited(shown: Shown, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Which blocks are looked at, and which of them without a mask."""
    with jax.enable_x64(True):
        visits = _visits(*shown, sizes)
    found = np.zeros((2, sizes.n_query_blocks, sizes.n_key_blocks), bool)
    for row, order in enumerate(np.asarray(visits.order)):
        masked, whole = int(visits.n_masked[row]), int(visits.n_seen[row])
        found[0, row, order[: masked + whole]] = True
        found[1, row, order[masked : masked + whole]] = True
    return found[0], found[1]


def needed(shown: Shown, sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """The same, by looking at each pair of a query and a key."""
    first, end = (x[:, None] for x in shown)
    keys = np.arange(sizes.padded_keys)
    sees = (keys >= first) & (keys < end)
    some = np.zeros((sizes.n_query_blocks, sizes.n_key_blocks), bool)
    whole = some.copy()
    for i, j in np.ndindex(some.shape):
        rows = sees[i * sizes.block_queries : (i + 1) * sizes.block_queries]
        part = rows[:, j * sizes.block_keys : (j + 1) * sizes.block_keys]
        some[i, j] = part.any()
        whole[i, j] = part.all() and (j + 1) * sizes.block_keys <= sizes.keys
    return some, whole


def random_batch(numbers: np.random.Generator, in_pages: bool, form: Any) -> Shown:
    """Sequences one behind the other, some without queries, or each in a table that is far longer than it."""
    queries = numbers.integers(0, 8, N_SEQUENCES) * numbers.integers(0, 2, N_SEQUENCES)
    keys = np.minimum(queries + numbers.integers(0, 40, N_SEQUENCES), MOST)
    starts_q = np.concatenate([[0], queries.cumsum()]).astype("int32")
    starts = np.concatenate([[0], keys.cumsum()]).astype("int32")
    if in_pages:
        starts = np.arange(N_SEQUENCES + 1, dtype="int32") * np.int32(MOST)
    with jax.enable_x64(True):
        found = _intervals(
            starts_q, starts, keys.astype("int32") if in_pages else None, N_QUERIES, *form
        )
    return np.array(found[0]), np.array(found[1])


@pytest.mark.parametrize("in_pages", [False, True])
@pytest.mark.parametrize("form", [(True, (-1, 0)), (False, (-1, -1)), (False, (3, 10))])
def test_random_batches_visit_what_is_needed(in_pages: bool, form: Any) -> None:
    numbers = np.random.default_rng(int(in_pages))
    for block_queries, block_keys in ((8, 16), (1, 4)):
        sizes = Sizes(1, 1, 1, N_QUERIES, N_SEQUENCES * MOST, block_queries, block_keys)
        for _ in range(20):
            shown = random_batch(numbers, in_pages, form)
            for found, expected in zip(visited(shown, sizes), needed(shown, sizes), strict=True):
                np.testing.assert_array_equal(found, expected, err_msg=f"{sizes} {shown}")


@pytest.mark.parametrize("most", [32, 2048])
def test_decoding_reads_no_more_of_a_longer_table(most: int) -> None:
    """Eight sequences of 64 tokens, in tables of so many pages of 16: a block of keys for each."""
    starts, size = np.arange(9) * most * 16, 512
    first, end = starts[:-1].astype(np.int32), (starts[:-1] + 64).astype(np.int32)

    found, _ = visited((first, end), Sizes(1, 1, 1, 8, int(starts[-1]), 8, size))

    assert found.sum() == 8
