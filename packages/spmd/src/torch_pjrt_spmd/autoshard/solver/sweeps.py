"""Sequential tree-reweighted message passing (TRW-S), over the variables in order and back.

Kolmogorov, "Convergent tree-reweighted message passing for energy minimization" (2006). A sweep back gives a
lower bound on the least cost without a limit of memory; a sweep forth gives a choice: each variable takes
its best strategy given the earlier ones' choices and the later ones' messages.
"""

from __future__ import annotations

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import Arrays
from torch_pjrt_spmd.autoshard.solver.compiled import compiled


@compiled
def forth(
    arrays: Arrays, costs: np.ndarray, weights: np.ndarray, messages: np.ndarray, choice: np.ndarray
) -> None:
    """Send messages to later variables, and write a choice.

    `costs` are those of the positions; `weights[v]` is one over the most edges that v has to one side.
    """
    largest = 0
    for v in range(len(arrays.offsets) - 1):
        largest = max(largest, arrays.offsets[v + 1] - arrays.offsets[v])
    own, given, out = np.zeros(largest), np.zeros(largest), np.zeros(largest)
    for v in range(len(arrays.offsets) - 1):
        begin = arrays.offsets[v]
        size = arrays.offsets[v + 1] - begin
        for k in range(size):
            own[k] = costs[begin + k]
            given[k] = own[k]
        for at in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[at]
            if arrays.ends[e, 0] == v:
                into = arrays.message_positions[e, 0]
                for k in range(size):
                    own[k] += messages[into + k]
                    given[k] += messages[into + k]
            else:
                into = arrays.message_positions[e, 1]
                row = arrays.edge_tables[e] + choice[arrays.ends[e, 0]] * size
                for k in range(size):
                    own[k] += messages[into + k]
                    given[k] += arrays.tables[row + k]
        best = 0
        for k in range(1, size):
            if given[k] < given[best]:
                best = k
        choice[v] = best
        for at in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[at]
            if arrays.ends[e, 0] != v:
                continue
            w = arrays.ends[e, 1]
            others = arrays.offsets[w + 1] - arrays.offsets[w]
            into, to = arrays.message_positions[e, 0], arrays.message_positions[e, 1]
            for k in range(size):
                out[k] = weights[v] * own[k] - messages[into + k]
            for j in range(others):
                messages[to + j] = np.inf
            for k in range(size):
                row = arrays.edge_tables[e] + k * others
                for j in range(others):
                    sent = arrays.tables[row + j] + out[k]
                    if sent < messages[to + j]:
                        messages[to + j] = sent
            least = np.inf
            for j in range(others):
                least = min(least, messages[to + j])
            for j in range(others):
                messages[to + j] -= least


@compiled
def back(
    arrays: Arrays, costs: np.ndarray, weights: np.ndarray, messages: np.ndarray, excess: np.ndarray
) -> float:
    """Send messages to earlier variables; a lower bound on the sum of `costs` and tables.

    `excess` is written: by how much any choice with this strategy exceeds the bound that the sweep before
    gave at the same costs; float64 [positions].
    """
    largest = 0
    for v in range(len(arrays.offsets) - 1):
        largest = max(largest, arrays.offsets[v + 1] - arrays.offsets[v])
    own, out = np.zeros(largest), np.zeros(largest)
    bound = 0.0
    for v in range(len(arrays.offsets) - 2, -1, -1):
        begin = arrays.offsets[v]
        size = arrays.offsets[v + 1] - begin
        for k in range(size):
            own[k] = costs[begin + k]
        for at in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[at]
            into = arrays.message_positions[e, 0 if arrays.ends[e, 0] == v else 1]
            for k in range(size):
                own[k] += messages[into + k]
        least = np.inf
        for k in range(size):
            least = min(least, own[k])
        for k in range(size):
            own[k] -= least
            excess[begin + k] = own[k]
        bound += least
        for at in range(arrays.near_begins[v], arrays.near_begins[v + 1]):
            e = arrays.near[at]
            if arrays.ends[e, 1] != v:
                continue
            w = arrays.ends[e, 0]
            others = arrays.offsets[w + 1] - arrays.offsets[w]
            into, to = arrays.message_positions[e, 1], arrays.message_positions[e, 0]
            for k in range(size):
                out[k] = weights[v] * own[k] - messages[into + k]
            least = np.inf
            for j in range(others):
                row = arrays.edge_tables[e] + j * size
                best = np.inf
                for k in range(size):
                    best = min(best, arrays.tables[row + k] + out[k])
                messages[to + j] = best
                least = min(least, best)
            for j in range(others):
                messages[to + j] -= least
            bound += least
    return bound
