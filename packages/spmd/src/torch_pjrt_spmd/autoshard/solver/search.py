"""Search by sub-problems: a random tree of variables is chosen anew, exactly, the rest staying as it is.

Memory is held by prices: where the best choice of the tree needs too much at some checkpoint, memory there
gets the price at which the choice it had is as good, and the tree is chosen again.
"""

from __future__ import annotations

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import Arrays
from torch_pjrt_spmd.autoshard.solver.compiled import compiled
from torch_pjrt_spmd.autoshard.solver.core import NEVER
from torch_pjrt_spmd.autoshard.solver.forests import choose, cost_of, grow

TRIES = 16  # how often a tree is chosen again at other prices


@compiled
def search(
    arrays: Arrays, prices: np.ndarray, choice: np.ndarray, usage: np.ndarray, best: np.ndarray,
    rounds: int, most: int, warmth: float, seed: int,
) -> tuple[float, float]:  # fmt: skip
    """Choose `rounds` trees of up to `most` variables anew.

    `prices` are the costs of the positions' memory (`price_costs`). `choice` and its `usage`, which must be
    within the limits, go on from tree to tree; a change that costs more is taken with the chance
    exp(-more / warmth). `best` is the cheapest choice met. Returns how much more than `choice` at the start
    the last and the best cost.
    """
    np.random.seed(seed)
    variables, checkpoints = len(arrays.offsets) - 1, len(arrays.limits)
    most = min(most, variables)
    members, parents, links = (
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
    )
    seen, frontier = np.zeros(variables, np.int64), np.zeros(4 * variables + 2, np.int64)
    position_of = np.full(variables, -1, np.int64)
    positions = np.zeros(most + 1, np.int64)
    costs, sums = np.zeros(len(arrays.costs)), np.zeros(len(arrays.costs))
    old, chosen = np.zeros(most, np.int64), np.zeros(most, np.int64)
    change = np.zeros(checkpoints + 1)
    extra_at, extra = np.zeros(TRIES, np.int64), np.zeros(TRIES)
    now, least = 0.0, 0.0
    for _ in range(rounds):
        wanted = int(
            np.exp(np.random.random() * np.log(most + 0.5) * 0.8 + np.log(most + 0.5) * 0.2)
        )
        size = grow(
            arrays, np.random.randint(variables), wanted, members, parents, links, seen, frontier
        )
        for i in range(size):
            position_of[members[i]] = i
        for i in range(size):
            v = members[i]
            begin = arrays.offsets[v]
            own = arrays.offsets[v + 1] - begin
            positions[i + 1] = positions[i] + own
            old[i] = choice[v]
            for k in range(own):
                costs[positions[i] + k] = arrays.costs[begin + k]
            for near in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
                e = arrays.near[near]
                table = arrays.edge_tables[e]
                if arrays.ends[e, 0] == v:
                    w = arrays.ends[e, 1]
                    if position_of[w] < 0:
                        others = arrays.offsets[w + 1] - arrays.offsets[w]
                        for k in range(own):
                            costs[positions[i] + k] += arrays.tables[table + k * others + choice[w]]
                else:
                    w = arrays.ends[e, 0]
                    if position_of[w] < 0:
                        for k in range(own):
                            costs[positions[i] + k] += arrays.tables[table + choice[w] * own + k]
        for i in range(size):
            position_of[members[i]] = -1
        before = cost_of(arrays, size, members, parents, links, positions, costs, old)
        share = 0.5 * np.random.randint(3)
        extras = 0
        for _ in range(TRIES):
            for i in range(size):
                begin = arrays.offsets[members[i]]
                for at in range(positions[i], positions[i + 1]):
                    sums[at] = costs[at] + share * prices[begin + at - positions[i]]
                for m in range(
                    arrays.member_offsets[members[i]], arrays.member_offsets[members[i] + 1]
                ):
                    for x in range(extras):
                        if arrays.member_spans[m, 0] <= extra_at[x] < arrays.member_spans[m, 1]:
                            used = arrays.member_positions[m]
                            for at in range(positions[i], positions[i + 1]):
                                sums[at] += extra[x] * arrays.usages[used + at - positions[i]]
            value_of_old, value = 0.0, 0.0
            choose(arrays, size, members, parents, links, positions, sums, chosen)
            after = cost_of(arrays, size, members, parents, links, positions, costs, chosen)
            first, end = checkpoints, 0
            for i in range(size):
                if chosen[i] == old[i]:
                    continue
                v = members[i]
                begin = arrays.offsets[v]
                value += share * prices[begin + chosen[i]]
                value_of_old += share * prices[begin + old[i]]
                for m in range(arrays.member_offsets[v], arrays.member_offsets[v + 1]):
                    position = arrays.member_positions[m]
                    more = arrays.usages[position + chosen[i]] - arrays.usages[position + old[i]]
                    if more != 0:
                        a, b = arrays.member_spans[m, 0], arrays.member_spans[m, 1]
                        change[a] += more
                        change[b] -= more
                        first, end = min(first, a), max(end, b)
            worst, over = -1, 0.0
            total = 0.0
            for t in range(first, end):
                total += change[t]
                change[t] = total
                if (
                    usage[t] + total > arrays.limits[t]
                    and usage[t] + total - arrays.limits[t] > over
                ):
                    worst, over = t, usage[t] + total - arrays.limits[t]
            if worst < 0:
                if (
                    after < before
                    or (
                        after > before
                        and warmth > 0
                        and np.random.random() < np.exp((before - after) / warmth)
                    )
                    or (after == before and first < end)
                ):
                    for i in range(size):
                        choice[members[i]] = chosen[i]
                    for t in range(first, end):
                        usage[t] += change[t]
                    now += after - before
                    if now < least - 1e-9 * abs(least):
                        least = now
                        for v in range(variables):
                            best[v] = choice[v]
                for t in range(first, end + 1):
                    change[t] = 0.0
                break
            rise = change[worst]
            for x in range(extras):
                value += extra[x] * change[extra_at[x]] if first <= extra_at[x] < end else 0.0
            for t in range(first, end + 1):
                change[t] = 0.0
            gain = (before + value_of_old) - (after + value)
            if gain <= 0 or before >= NEVER:
                break
            known = -1
            for x in range(extras):
                if extra_at[x] == worst:
                    known = x
            if known < 0:
                known = extras
                extra_at[known], extra[known] = worst, 0.0
                extras += 1
            extra[known] += gain / rise
    return now, least
