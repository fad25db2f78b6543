"""A cache drops its oldest entries for new ones, and the report shows how full it is."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import torch_pjrt
from torch_pjrt.caches import Cache, Fill, Interned, fills


def test_the_oldest_eighth_goes():
    cache: Cache[int, int] = Cache("sixteen", most=16)
    for n in range(17):
        cache[n] = n

    assert list(cache) == list(range(2, 17))
    assert cache.dropped == 2


def test_a_key_that_is_there_takes_no_room():
    cache: Cache[int, int] = Cache("four", most=4)
    for n in (1, 2, 3, 4, 4, 1):
        cache[n] = n

    assert (list(cache), cache.dropped) == ([1, 2, 3, 4], 0)


def test_caches_of_one_name_are_shown_as_one():
    caches = [Cache("shared", most=8) for _ in range(3)]
    for cache in caches:
        cache[0] = 0

    assert Fill("shared", 3, 8, 0) in fills()
    del cache, caches
    gc.collect()
    assert not [fill for fill in fills() if fill.name == "shared"]


def test_threads_that_fill_one_cache_keep_it_bounded():
    cache: Cache[int, int] = Cache("threads", most=64)

    def fill(start: int) -> None:
        for n in range(start, start + 5_000):
            cache[n] = n

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fill, range(0, 40_000, 5_000)))

    assert len(cache) <= 64 + 8
    assert cache.dropped + len(cache) == 40_000


def test_report_shows_them():
    cache: Cache[int, int] = Cache("of this test", most=8)
    cache[0] = 0
    report = torch_pjrt.report()

    shown = [fill for fill in report.as_dict()["caches"] if fill["name"] == "of this test"]
    assert shown == [{"name": "of this test", "entries": 1, "most": 8, "dropped": 0}]
    assert "of this test" in str(report)


class Thing:
    """What is compared by identity."""


def one(interned: Interned[int, Thing], key: int) -> Thing:
    return interned.get(key) or interned.still_held(key) or interned.one(key, Thing())


def test_what_somebody_holds_is_the_one_though_it_was_let_go():
    interned: Interned[int, Thing] = Interned("things", most=4)
    held = [one(interned, n) for n in range(100)]

    assert len(interned) <= 4
    assert interned.dropped >= 96
    assert [one(interned, n) for n in range(100)] == held
    assert len({id(one(interned, n)) for n in range(100)}) == 100


def test_what_nobody_holds_goes():
    interned: Interned[int, Thing] = Interned("things", most=4)
    seen = weakref.WeakSet(one(interned, n) for n in range(100))
    gc.collect()

    assert len(seen) == len(interned) <= 4


def test_threads_get_one_object_for_a_key():
    interned: Interned[int, Thing] = Interned("things", most=8)

    def ask(_: int) -> list[Thing]:
        return [one(interned, n % 64) for n in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(ask, range(8)))

    held = [thing for things in got for thing in things]
    # While all are held, each key has one.
    assert (
        len({id(thing) for thing in held[-64:]} | {id(one(interned, n)) for n in range(64)}) == 64
    )
