"""Search by sub-problems: a random tree of variables is chosen anew, exactly, the rest staying as it is.

Memory is held by prices: where the best choice of the tree needs too much at some checkpoint, memory there
gets the price at which the choice it had is as good, and the tree is chosen again.
"""

from __future__ import annotations

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import Arrays
from torch_pjrt_spmd.autoshard.solver.compiled import compiled

TRIES = 8  # how often a tree is chosen again at other prices


@compiled
def grow(
    arrays: Arrays, seed: int, most: int, members: np.ndarray, parents: np.ndarray, links: np.ndarray,
    seen: np.ndarray, frontier: np.ndarray,
) -> int:  # fmt: skip
    """A random tree from `seed`: its variables, each one's parent (a place in it) and edge to it; its size.

    No two of its variables are joined but by edges to parents. `seen` is 0 everywhere, before and after.
    """
    members[0], parents[0], links[0] = seed, -1, -1
    size, waiting, touched = 1, 0, 1
    # seen: 0 not met; p + 1: joined to the member at place p alone; -1: a member, or joined to two
    seen[seed] = -1
    at = 0
    met = frontier[len(frontier) // 2 :]  # all that was met, to be cleared
    met[0] = seed
    while True:
        v = members[at]
        for near in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[near]
            w = arrays.ends[e, 0] + arrays.ends[e, 1] - v
            if seen[w] == 0:
                seen[w] = at + 1
                met[touched] = w
                touched += 1
                frontier[waiting] = w
                waiting += 1
            else:
                seen[w] = -1
        at = size
        found = False
        while waiting > 0 and size < most:
            pick = np.random.randint(waiting)
            w = frontier[pick]
            waiting -= 1
            frontier[pick] = frontier[waiting]
            if seen[w] > 0:
                parents[size] = seen[w] - 1
                members[size] = w
                seen[w] = -1
                found = True
                break
        if not found:
            break
        size += 1
    for i in range(1, size):
        v, p = members[i], members[parents[i]]
        for near in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[near]
            if arrays.ends[e, 0] + arrays.ends[e, 1] - v == p:
                links[i] = e
                break
    for i in range(touched):
        seen[met[i]] = 0
    return size


@compiled
def choose(
    arrays: Arrays, size: int, members: np.ndarray, parents: np.ndarray, links: np.ndarray,
    positions: np.ndarray, sums: np.ndarray, chosen: np.ndarray,
) -> None:  # fmt: skip
    """The best choice of a tree; `sums`, from `positions[i]` on what each variable costs, are changed."""
    for i in range(size - 1, 0, -1):
        begin, own = positions[i], positions[i + 1] - positions[i]
        parent = positions[parents[i]]
        theirs = positions[parents[i] + 1] - parent
        table = arrays.edge_tables[links[i]]
        if arrays.ends[links[i], 1] == members[i]:
            across, along = own, 1
        else:
            across, along = 1, theirs
        for j in range(theirs):
            least = np.inf
            start = table + j * across
            for k in range(own):
                least = min(least, sums[begin + k] + arrays.tables[start + k * along])
            sums[parent + j] += least
    for i in range(size):
        begin, own = positions[i], positions[i + 1] - positions[i]
        start, along = 0, 0
        if i > 0:
            theirs = positions[parents[i] + 1] - positions[parents[i]]
            start, along = arrays.edge_tables[links[i]], 1
            if arrays.ends[links[i], 1] == members[i]:
                start += chosen[parents[i]] * own
            else:
                start, along = start + chosen[parents[i]], theirs
        best, least = 0, np.inf
        for k in range(own):
            total = sums[begin + k]
            if i > 0:
                total += arrays.tables[start + k * along]
            if total < least:
                best, least = k, total
        chosen[i] = best


@compiled
def cost_of(
    arrays: Arrays, size: int, members: np.ndarray, parents: np.ndarray, links: np.ndarray,
    positions: np.ndarray, costs: np.ndarray, chosen: np.ndarray,
) -> float:  # fmt: skip
    """What a choice of a tree costs."""
    total = 0.0
    for i in range(size):
        total += costs[positions[i] + chosen[i]]
        if i > 0:
            table = arrays.edge_tables[links[i]]
            if arrays.ends[links[i], 1] == members[i]:
                total += arrays.tables[
                    table + chosen[parents[i]] * (positions[i + 1] - positions[i]) + chosen[i]
                ]
            else:
                theirs = positions[parents[i] + 1] - positions[parents[i]]
                total += arrays.tables[table + chosen[i] * theirs + chosen[parents[i]]]
    return float(total)
