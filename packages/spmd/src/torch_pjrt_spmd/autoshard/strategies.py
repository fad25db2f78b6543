"""The ways in which an operator's work can be shared out: which letter of it is spread over which axis.

Along each axis of the mesh chips share out one letter, or do the same. All axes are chosen together. A letter
that is added up leaves a part of the sum on each chip: an all-reduce makes it whole on each, or a
reduce-scatter gives each chip a part of it, along another letter of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch_pjrt_spmd.autoshard.letters import Dims, Letters, Sum
from torch_pjrt_spmd.autoshard.network import Network
from torch_pjrt_spmd.autoshard.specs import Exchange, Layout, exchange_time, is_reordered

_MOST = 160  # of one operator; with more axes and letters the smallest letters are left out


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way. inputs, outputs: the layouts that it takes and makes.

    letters   of each axis the letter, or -1. exchanges: what chips exchange within it.
    """

    letters: tuple[int, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    exchanges: tuple[Exchange, ...]
    parts: tuple[int, ...]  # of each of the operator's works, among how many chips it is shared out


def strategies_of(letters: Letters, network: Network) -> list[Strategy]:
    """All of an operator's, the one where all chips do all of it among them."""
    choices = _choices(letters, network)
    found: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], Strategy] = {}
    for ways in product(*choices):
        new = _strategy(letters, network, ways)
        if new is None:
            continue
        key = (new.inputs, new.outputs)
        old = found.get(key)
        if old is None or _seconds(new, network) < _seconds(old, network):
            found[key] = new
    return list(found.values())


Way = tuple[
    int, int
]  # along an axis: the letter that is spread, and that its sum is scattered along; or -1


def _choices(letters: Letters, network: Network) -> list[list[Way]]:
    found: list[list[Way]] = []
    for axis in network.axes:
        ways: list[Way] = [(-1, -1)]
        free = [
            x
            for x, n in enumerate(letters.sizes)
            if x not in letters.whole and n % axis.size == 0 and _is_seen(letters, x)
        ]
        ways += [(x, -1) for x in free]
        for x in free:
            sums = [s for s in letters.sums if x in s.letters]
            if len(sums) == 1:
                s = sums[0]
                shown = {y for i in s.after for d in letters.outputs[i] for y in d}
                ways += [(x, y) for y in s.of if y in free and y in shown and y not in s.letters]
        found.append(ways)
    while prod(map(len, found)) > _MOST and any(w[1] >= 0 for ways in found for w in ways):
        longest = max(found, key=lambda ways: sum(w[1] >= 0 for w in ways))
        scattered = [w for w in longest if w[1] >= 0]
        longest.remove(min(scattered, key=lambda w: letters.sizes[w[1]]))
    while prod(map(len, found)) > _MOST:
        longest = max(found, key=len)
        longest.remove(min(longest[1:], key=lambda w: letters.sizes[w[0]]))
    return found


def _is_seen(letters: Letters, x: int) -> bool:
    return any(x in d for dims in (*letters.inputs, *letters.outputs) for d in dims)


def _strategy(letters: Letters, network: Network, ways: Sequence[Way]) -> Strategy | None:
    spread = tuple(x for x, _ in ways)
    after = tuple(x if y < 0 else y for x, y in ways)
    sizes = [axis.size for axis in network.axes]
    parts = _parts(spread, sizes)
    parts_after = _parts(after, sizes)
    if any(letters.sizes[x] % n for x, n in (*parts.items(), *parts_after.items())):
        return None
    exchanges: list[Exchange] = []
    scattered: Sum | None = None
    for s in letters.sums:
        along = [a for a, (x, _) in enumerate(ways) if x in s.letters]
        if not along:
            continue
        whole = prod(letters.sizes[y] for y in s.of) * s.itemsize
        local = whole // max(prod(parts.get(y, 1) for y in set(s.of)), 1)
        reduced = [a for a in along if ways[a][1] < 0]
        to_scatter = [a for a in along if ways[a][1] >= 0]
        if to_scatter:
            if s.direct:
                return None
            scattered = s
            n = prod(sizes[a] for a in to_scatter)
            exchanges.append(("reduce-scatter", local // n, tuple(to_scatter), s.runs))
            local //= n
            for y in {ways[a][1] for a in to_scatter}:
                if is_reordered(spread, after, y):
                    axes = tuple(a for a in range(len(ways)) if y in (spread[a], after[a]))
                    exchanges.append(("collective-permute", local, axes, s.runs))
        if reduced:
            exchanges.append(("all-reduce", local, tuple(reduced), s.runs))
    before = frozenset(range(len(letters.inputs))) if scattered is None else scattered.before
    reached = frozenset() if scattered is None else scattered.after
    inputs = tuple(
        _layout(dims, spread if i in before else after) for i, dims in enumerate(letters.inputs)
    )
    outputs = tuple(
        _layout(dims, after if i in reached else spread) for i, dims in enumerate(letters.outputs)
    )
    shares = tuple(prod(parts.get(x, 1) for x in of) for _, of in letters.works)
    return Strategy(spread, inputs, outputs, tuple(exchanges), shares)


def _parts(spread: Sequence[int], sizes: Sequence[int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for x, n in zip(spread, sizes, strict=True):
        if x >= 0:
            found[x] = found.get(x, 1) * n
    return found


def _layout(dims: Dims, spread: Sequence[int]) -> Layout:
    flat = [x for d in dims for x in d]
    return tuple(flat.index(x) if x in flat else -1 for x in spread)


def _seconds(strategy: Strategy, network: Network) -> int:
    return sum(exchange_time(e, network) for e in strategy.exchanges)
