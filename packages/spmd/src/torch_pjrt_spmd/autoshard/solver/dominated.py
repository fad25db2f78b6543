"""Strategies that another one of their variable makes superfluous, whatever the neighbours choose.

Strategy `a` is dominated by `b` if `b` costs no more beside any choice of any neighbour and uses no more
memory at any checkpoint. A best choice without dominated strategies is as good as a best one with them:
each can be replaced, one after the other.
"""

from __future__ import annotations

import time

import numpy as np

from torch_pjrt_spmd.autoshard.solver.core import Core
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN

LARGEST = 100  # strategies of a variable that is looked at
EXACT = 2.0**50  # sums of smaller numbers are exact in floats


def instead(core: Core, until: float = np.inf) -> np.ndarray:
    """For each position that of the strategy to take instead (int64 [positions]): itself, if none dominates.

    until   a time of `time.monotonic` after which variables are left as they are.
    """
    found = np.arange(len(core.costs))
    sizes = core.sizes()
    near: list[list[tuple[int, bool, int]]] = [[] for _ in range(core.variables)]
    for (v, w), begin in zip(core.ends.tolist(), core.edge_tables.tolist(), strict=True):
        near[v].append((begin, True, int(sizes[w])))
        near[w].append((begin, False, int(sizes[v])))
    known: dict[tuple[int, bool, int, int], np.ndarray] = {}
    for v, n in enumerate(sizes.tolist()):
        if n < 2 or n > LARGEST:
            continue
        if v % 64 == 0 and time.monotonic() > until:
            break
        begin = int(core.offsets[v])
        ok = np.ones((n, n), bool)  # [b, a]: b may be taken instead of a
        for m in range(core.member_offsets[v], core.member_offsets[v + 1]):
            used = core.usages[core.member_positions[m] : core.member_positions[m] + n]
            ok &= used[:, None] <= used[None, :]
        np.fill_diagonal(ok, False)
        if not ok.any():
            continue
        costs = core.costs[begin : begin + n].astype(float)
        more = costs[:, None] - costs[None, :]
        largest = np.abs(costs).max()
        for table, is_row, others in near[v]:
            key = (table, is_row, n, others)
            if key not in known:
                known[key] = _most_more(core, *key)
            with np.errstate(invalid="ignore"):
                more = more + known[key]
            finite = known[key][np.isfinite(known[key])]
            largest = max(largest, np.abs(finite).max(initial=0.0))
        slack = 0.0 if largest * (len(near[v]) + 1) < EXACT else 1e-12 * largest
        ok &= more <= -slack
        # Of two that are alike the first stays: then no strategies dominate each other in a circle.
        ok &= ~(ok.T & np.tri(n, k=-1, dtype=bool))
        for a in np.flatnonzero(ok.any(0)).tolist():
            found[begin + a] = begin + int(ok[:, a].argmax())
    while True:  # what is taken instead may be dominated itself
        further = found[found]
        if (further == found).all():
            return found
        found = further


def _most_more(core: Core, begin: int, is_row: bool, own: int, others: int) -> np.ndarray:
    """How much more `b` costs than `a` at most, over the neighbour's choices: float64 [b, a]; may be inf."""
    raw = core.tables[begin : begin + own * others]
    table = raw.reshape(own, others) if is_row else raw.reshape(others, own).T
    forbidden = table >= FORBIDDEN
    values = np.where(forbidden, 0.0, table.astype(float))
    more = values[:, None, :] - values[None, :, :]
    more = np.where(forbidden[:, None, :], np.inf, more)
    more = np.where(forbidden[None, :, :], -np.inf, more)  # beside it `a` is not allowed anyway
    return more.max(2, initial=-np.inf)
