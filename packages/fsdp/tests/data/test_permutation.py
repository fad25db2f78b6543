"""A `Permutation` has each number once, looks random, and takes no room."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter

import numpy as np
import pytest

from torch_pjrt_fsdp import Permutation
from torch_pjrt_fsdp.data import permutation

NETWORK, TABLE = 0, 2**16  # what `TABLE_UP_TO` is for each way
# By how many standard deviations a figure may be off. With a hundred figures, 4.5 is seen by chance in one
# run of a thousand; seeds are fixed, so these runs are one.
MOST = 4.5
GOLDEN_TABLE = [7, 0, 9, 4, 2, 1, 6, 5, 8, 3]
GOLDEN_NETWORK = [566446093, 139611301, 735457408, 906715438]


@pytest.fixture(params=[NETWORK, TABLE], ids=["network", "table"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(permutation, "TABLE_UP_TO", request.param)
    return request.param


def deviation(counts: np.ndarray) -> float:
    """By how many standard deviations a chi-squared of equal chances is off."""
    expected, freedom = counts.sum() / counts.size, counts.size - 1
    return (((counts - expected) ** 2).sum() / expected - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("sizes", [range(400), [1000, 4095, 4096, 4097, 65535, 65536, 65537]])
def test_each_number_stands_at_one_place(way: int, sizes: list[int]) -> None:
    for size in sizes:
        order = Permutation(size, seed=size, epoch=1)

        assert sorted(order[:]) == list(range(size))
        for position in range(0, size, max(size // 11, 1)):
            assert order.position_of(order[position]) == position


def test_parts_are_parts_of_the_whole(way: int) -> None:
    order = Permutation(1000, seed=4)
    whole = order[:]

    assert order.take(17, 205).tolist() == whole[17:205]
    assert order[3::7] == whole[3::7] and order[-1] == whole[-1]
    assert list(order) == whole
    with pytest.raises(IndexError):
        order[1000]
    with pytest.raises(IndexError, match="999 to 1001"):
        order.take(999, 1001)
    with pytest.raises(ValueError, match="not below 1000"):
        order.position_of(1000)


def test_all_orders_of_a_few_things_are_equally_frequent() -> None:
    for size in (2, 3, 4, 5, 6):
        n = math.factorial(size)
        seen = Counter(tuple(Permutation(size, seed)[:]) for seed in range(3000))
        counts = np.array([seen[order] for order in itertools.permutations(range(size))])

        assert abs(deviation(counts)) < MOST, (size, n)


@pytest.mark.parametrize("size", [97, 1000, 70_001, 10**9, 2**62])
def test_neighbours_in_the_network_are_independent(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permutation, "TABLE_UP_TO", NETWORK)
    triples = np.array([Permutation(size, seed).take(10, 13) for seed in range(2000)])
    cells = [[int(x) * 6 // size for x in row] for row in triples]
    counts = np.zeros((6, 6, 6))
    for a, b, c in cells:
        counts[a, b, c] += 1

    assert abs(deviation(counts)) < MOST
    order = Permutation(size, 1).take(0, min(size, 50_000)).astype(float)
    for lag in (1, 2, 1000):
        if lag < len(order):
            correlation = np.corrcoef(order[:-lag], order[lag:])[0, 1]
            assert abs(correlation) * math.sqrt(len(order) - lag) < MOST


def test_epochs_and_seeds_have_orders_of_their_own(way: int) -> None:
    names = [(0, 0), (0, 1), (1, 0), (-1, 0), (2**64, 0), (1 << 200, 5), (0, 2**64)]
    orders = [tuple(Permutation(500, seed, epoch)[:]) for seed, epoch in names]

    assert len(set(orders)) == len(orders)
    matches = [
        sum(a == b for a, b in zip(x, y, strict=True)) for x, y in itertools.combinations(orders, 2)
    ]
    assert max(matches) < 10  # one is expected


def test_orders_stay_what_they_are() -> None:
    """A state that was saved once has no meaning any more if these change."""
    assert Permutation(10, seed=1, epoch=2)[:] == GOLDEN_TABLE
    assert Permutation(10**9, seed=1, epoch=2).take(0, 4).tolist() == GOLDEN_NETWORK


def test_a_large_one_holds_a_few_hundred_bytes() -> None:
    order = Permutation(10**12, seed=3)

    held = [order, vars(order), order._keys, *order._keys]
    assert sum(map(sys.getsizeof, held)) < 2000
    assert all(not isinstance(value, np.ndarray) for value in vars(order).values())
    with pytest.raises(ValueError, match=r"2\*\*62"):
        Permutation(2**62 + 1)
