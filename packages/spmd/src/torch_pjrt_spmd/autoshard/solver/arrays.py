"""A core as the arrays that compiled loops take, in floats; and the loops about memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from torch_pjrt_spmd.autoshard.solver.compiled import compiled
from torch_pjrt_spmd.autoshard.solver.core import NEVER, Core
from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN


class Arrays(NamedTuple):
    """See `Core` for what is named as there. Costs, tables, limits and usages are float64."""

    offsets: np.ndarray
    costs: np.ndarray
    ends: np.ndarray
    edge_tables: np.ndarray
    tables: np.ndarray  # `NEVER` where forbidden
    near_begins: np.ndarray  # int64 [variables + 1]
    near: np.ndarray  # int64 [2 edges]: the edges of each variable, those to lower variables first
    message_positions: np.ndarray  # int64 [edges, 2]: where the messages to its two ends begin
    limits: np.ndarray
    member_offsets: np.ndarray
    member_spans: np.ndarray
    member_positions: np.ndarray
    usages: np.ndarray


def arrays_of(core: Core) -> Arrays:
    sizes, edges = core.sizes(), len(core.ends)
    both = core.ends.ravel()
    messages = np.concatenate([[0], np.cumsum(sizes[both])]).astype(np.int64)
    others = core.ends[:, ::-1].ravel()
    order = np.lexsort((others, both))
    degrees = np.bincount(both, minlength=core.variables)
    return Arrays(
        offsets=core.offsets,
        costs=core.costs.astype(np.float64),
        ends=core.ends,
        edge_tables=core.edge_tables,
        tables=np.where(core.tables >= FORBIDDEN, NEVER, core.tables.astype(np.float64)),
        near_begins=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        near=(order // 2).astype(np.int64),
        message_positions=messages[:-1].reshape(edges, 2).copy(),
        limits=core.limits.astype(np.float64),
        member_offsets=core.member_offsets,
        member_spans=core.member_spans,
        member_positions=core.member_positions,
        usages=core.usages.astype(np.float64),
    )


@compiled
def price_costs(arrays: Arrays, prices: np.ndarray) -> np.ndarray:
    """What the memory of each strategy costs at a price for each checkpoint; float64 [positions]."""
    cumulated = np.zeros(len(prices) + 1)
    for t in range(len(prices)):
        cumulated[t + 1] = cumulated[t] + prices[t]
    costs = np.zeros(len(arrays.costs))
    for v in range(len(arrays.offsets) - 1):
        begin = arrays.offsets[v]
        size = arrays.offsets[v + 1] - begin
        for m in range(arrays.member_offsets[v], arrays.member_offsets[v + 1]):
            price = cumulated[arrays.member_spans[m, 1]] - cumulated[arrays.member_spans[m, 0]]
            if price > 0:
                position = arrays.member_positions[m]
                for k in range(size):
                    costs[begin + k] += price * arrays.usages[position + k]
    return costs


@compiled
def usage_of(arrays: Arrays, choice: np.ndarray) -> np.ndarray:
    """The memory in use at each checkpoint; float64."""
    checkpoints = len(arrays.limits)
    usage = np.zeros(checkpoints + 1)
    for v in range(len(arrays.offsets) - 1):
        for m in range(arrays.member_offsets[v], arrays.member_offsets[v + 1]):
            used = arrays.usages[arrays.member_positions[m] + choice[v]]
            usage[arrays.member_spans[m, 0]] += used
            usage[arrays.member_spans[m, 1]] -= used
    for t in range(1, checkpoints):
        usage[t] += usage[t - 1]
    return usage[:checkpoints]


@compiled
def energy_of(arrays: Arrays, choice: np.ndarray) -> float:
    """The cost of a choice of the variables, `NEVER` and more where a pair is forbidden."""
    total = 0.0
    for v in range(len(arrays.offsets) - 1):
        total += arrays.costs[arrays.offsets[v] + choice[v]]
    for e in range(len(arrays.ends)):
        w = arrays.ends[e, 1]
        size = arrays.offsets[w + 1] - arrays.offsets[w]
        total += arrays.tables[arrays.edge_tables[e] + choice[arrays.ends[e, 0]] * size + choice[w]]
    return float(total)
