"""Small problems, by trying everything that may be better: depth first, in exact integers, nothing compiled.

What is not chosen yet costs at least the least of each variable and of each table; and uses no memory, since
the least that each variable uses is off the limits already.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from torch_pjrt_spmd.autoshard.solver.core import Core
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN


@dataclass(frozen=True, eq=False)
class Tried:
    choice: np.ndarray | None  # int64 [variables]: the cheapest within the limits
    is_all: bool  # nothing was left out for want of time


LARGEST = 40  # variables
MOST_USAGES = 2_000_000  # strategies x checkpoints


def is_small(core: Core) -> bool:
    return core.variables <= LARGEST and len(core.costs) * len(core.limits) <= MOST_USAGES


def try_all(core: Core, seconds: float) -> Tried:
    """The cheapest choice within the limits, if the time suffices to try all that may be cheaper."""
    deadline = time.monotonic() + seconds
    if (core.limits < 0).any():  # the least that each variable uses is too much
        return Tried(None, is_all=True)
    sizes, count = core.sizes().tolist(), core.variables
    costs = [
        core.costs[a:b].tolist() for a, b in zip(core.offsets[:-1], core.offsets[1:], strict=True)
    ]
    # of each variable, its edges to earlier ones: to which, and the table by that one's strategy
    earlier: list[list[tuple[int, list[list[int]]]]] = [[] for _ in range(count)]
    rest = [0] * (count + 1)  # the least that variables from here on cost
    for (v, w), begin in zip(core.ends.tolist(), core.edge_tables.tolist(), strict=True):
        table = core.tables[begin : begin + sizes[v] * sizes[w]].reshape(sizes[v], sizes[w])
        earlier[w].append((v, table.tolist()))
        rest[w] += int(table.min())
    for v in range(count - 1, -1, -1):
        rest[v] += min(costs[v]) + rest[v + 1]
    usages = [_usages(core, v) for v in range(count)]
    chosen, best = [0] * count, None
    cheapest: float = math.inf  # or an integer, which compares exactly
    free = [core.limits]
    orders: list[
        list[tuple[int, int]]
    ] = []  # what is still to be tried of each variable, the cheapest last
    spent = [0]
    steps = 0
    while True:
        v = len(orders)
        if v == count:
            if spent[-1] < cheapest:
                best, cheapest = np.array(chosen, np.int64), spent[-1]
        else:
            totals = []
            for k in range(sizes[v]):
                pairs = [table[chosen[u]][k] for u, table in earlier[v]]
                if all(cost < FORBIDDEN for cost in pairs):
                    totals.append((costs[v][k] + sum(pairs), k))
            orders.append(sorted(totals, reverse=True))
            spent.append(spent[-1])
            free.append(free[-1])
        while orders:
            v = len(orders) - 1
            if not orders[v]:
                orders.pop()
                spent.pop()
                free.pop()
                continue
            total, k = orders[v].pop()
            if spent[v] + total + rest[v + 1] >= cheapest:
                orders[v].clear()
                continue
            left = free[v] - usages[v][k]
            if (left < 0).any():
                continue
            chosen[v], spent[v + 1], free[v + 1] = k, spent[v] + total, left
            break
        else:
            return Tried(best, is_all=True)
        steps += 1
        if steps % 256 == 0 and time.monotonic() > deadline:
            return Tried(best, is_all=False)


def closest(core: Core, seconds: float) -> np.ndarray | None:
    """A choice that exceeds the limits by the least; None where all have a forbidden pair, or time is up."""
    deadline = time.monotonic() + seconds
    unlimited = try_all(replace(core, limits=core.limits + 2**60), seconds)
    found, low, high = unlimited.choice, 0, 0
    if found is not None and unlimited.is_all:
        high = int((core.usage(found) - core.limits).max(initial=0))
    while found is not None and low < high:
        middle = (low + high) // 2
        tried = try_all(replace(core, limits=core.limits + middle), deadline - time.monotonic())
        if tried.choice is not None:
            found = tried.choice
            high = int((core.usage(found) - core.limits).max(initial=0))
        elif tried.is_all:
            low = middle + 1
        else:
            break
    return found


def _usages(core: Core, v: int) -> np.ndarray:
    """int64 [strategies, checkpoints]"""
    size = int(core.offsets[v + 1] - core.offsets[v])
    used = np.zeros((size, len(core.limits)), np.int64)
    for m in range(core.member_offsets[v], core.member_offsets[v + 1]):
        a, b = core.member_spans[m]
        position = core.member_positions[m]
        used[:, a:b] += core.usages[position : position + size, None]
    return used
