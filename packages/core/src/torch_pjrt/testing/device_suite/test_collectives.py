"""What the chips of one client say to each other: programs over all of them, as sharded ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_pjrt import dtypes

File = Callable[[str], None]


@pytest.fixture
def chips(pjrt_kind: File) -> list[Any]:
    """All that this process may use of the device at work; the test is not run where that is one."""
    pjrt_kind("collectives")
    from torch_pjrt.client.client import client

    found = list(client().chip.client.local_devices())
    if len(found) < 2:
        pytest.skip("not run: one device")
    return found


def run_on(chips: list[Any], of_a_chip: Callable[[Any], Any], host: np.ndarray) -> np.ndarray:
    """A program that gives each chip its rows of `host`, and puts the rows that they make together."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(chips), ("chips",))
    rows = PartitionSpec("chips")
    with dtypes.x64():
        array = jax.device_put(host, NamedSharding(mesh, rows))
        function = jax.shard_map(of_a_chip, mesh=mesh, in_specs=rows, out_specs=rows)
        return np.asarray(jax.jit(function)(array))


def rows_of(chips: list[Any], dtype: torch.dtype) -> np.ndarray:
    """As many rows for each chip as there are chips: small whole numbers, so that sums are exact."""
    n = len(chips)
    return (np.arange(n * n * 3).reshape(n * n, 3) % 7).astype(dtypes.to_jax(dtype))


DTYPES = (torch.float32, torch.bfloat16, torch.int32)
with_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])


@with_each_dtype
def test_all_reduce_gives_each_chip_the_sum(chips: list[Any], dtype: torch.dtype) -> None:
    import jax

    n, host = len(chips), rows_of(chips, dtype)

    there = run_on(chips, lambda x: jax.lax.psum(x, "chips"), host)

    summed = host.reshape(n, n, 3).sum(0, dtype=host.dtype)
    np.testing.assert_array_equal(there, np.tile(summed, (n, 1)))


@with_each_dtype
def test_all_gather_gives_each_chip_all_rows(chips: list[Any], dtype: torch.dtype) -> None:
    import jax

    host = rows_of(chips, dtype)

    there = run_on(chips, lambda x: jax.lax.all_gather(x, "chips", tiled=True), host)

    np.testing.assert_array_equal(there, np.tile(host, (len(chips), 1)))


@with_each_dtype
def test_reduce_scatter_gives_each_chip_its_part_of_the_sum(
    chips: list[Any], dtype: torch.dtype
) -> None:
    import jax

    n, host = len(chips), rows_of(chips, dtype)

    there = run_on(chips, lambda x: jax.lax.psum_scatter(x, "chips", tiled=True), host)

    np.testing.assert_array_equal(there, host.reshape(n, n, 3).sum(0, dtype=host.dtype))


@with_each_dtype
def test_permute_hands_each_chip_what_its_neighbour_has(
    chips: list[Any], dtype: torch.dtype
) -> None:
    import jax

    n, host = len(chips), rows_of(chips, dtype)
    around = [(i, (i + 1) % n) for i in range(n)]

    there = run_on(chips, lambda x: jax.lax.ppermute(x, "chips", around), host)

    np.testing.assert_array_equal(there, np.roll(host, n, 0))


@with_each_dtype
def test_all_to_all_hands_each_chip_a_row_of_each(chips: list[Any], dtype: torch.dtype) -> None:
    import jax

    n, host = len(chips), rows_of(chips, dtype)

    there = run_on(chips, lambda x: jax.lax.all_to_all(x, "chips", 0, 0, tiled=True), host)

    wanted = host.reshape(n, n, 3).transpose(1, 0, 2).reshape(n * n, 3)
    np.testing.assert_array_equal(there, wanted)
