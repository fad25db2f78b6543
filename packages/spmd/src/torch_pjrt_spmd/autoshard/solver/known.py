"""Problems to test and to measure the solver with, whose least cost is known.

`planted` makes one of any size around a choice, with prices that prove that choice the best: at them, no
strategy and no pair costs less than those of the choice. `scattered` makes a small one at random, with all
that the format allows, and `by_trying_all` finds its least cost.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from torch_pjrt_spmd.autoshard.solver.problem import FORBIDDEN, Problem


def planted(
    nodes: int, seed: int, *, strategies: int = 6, follow: float = 0.5, scale: int = 1000
) -> tuple[Problem, int]:
    """A problem whose limit of memory binds, and its least cost.

    Each node reads one to three earlier ones, mostly near. A share `follow` of the nodes may choose only
    what fits the first that they read, as elementwise operators do. Costs are about `scale`.
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(1, strategies + 1, nodes).tolist()
    pairs, tables = [], []
    for j in range(1, nodes):
        reads = {max(0, j - 1 - int(random.exponential(4))) for _ in range(random.integers(1, 4))}
        for place, i in enumerate(sorted(reads)):
            if place == 0 and random.random() < follow:
                sizes[j] = sizes[i]
            pairs.append((i, j, place == 0))
    best = np.array([random.integers(size) for size in sizes], np.int64)
    begins = np.arange(nodes)
    intervals = np.stack([begins, begins + random.integers(0, 12, nodes)], 1)
    intervals[random.random(nodes) < 0.1] = 0, nodes + 12  # weights live all the time
    usages = [random.integers(1, 50, size) * 10 for size in sizes]
    problem = Problem([], usages, intervals, np.zeros((0, 2), np.int64), [], np.zeros(0, np.int64))
    times, used = problem.usage_over_time(best)
    fullest, limit = times[used.argmax()], int(used.max())
    price = max(1, scale // 100)
    lives = (intervals[:, 0] <= fullest) & (fullest < intervals[:, 1])
    costs = []
    for i in range(nodes):
        worse = random.integers(0, scale, sizes[i]) * (np.arange(sizes[i]) != best[i])
        costs.append((worse - price * usages[i] * lives[i] + price * 500).astype(np.int64))
    for i, j, may_follow in pairs:
        table = random.integers(0, scale, (sizes[i], sizes[j]))
        if may_follow and sizes[i] == sizes[j]:
            moved = (np.arange(sizes[i]) + best[j] - best[i]) % sizes[i]
            table = np.full((sizes[i], sizes[i]), FORBIDDEN)
            table[np.arange(sizes[i]), moved] = random.integers(0, scale, sizes[i])
        table[best[i], best[j]] = 0
        shift = random.integers(
            0, scale, sizes[j]
        )  # from the table to the node, which changes nothing
        tables.append(np.where(table >= FORBIDDEN, FORBIDDEN, table + shift))
        costs[j] = costs[j] + scale - shift
    ends = np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2)
    problem = Problem(costs, usages, intervals, ends, tables, np.arange(len(tables)), limit)
    return problem, problem.cost(best)


def scattered(seed: int, *, nodes: int = 6, strategies: int = 3, largest: int = 100) -> Problem:
    """A small problem at random: forbidden pairs, self edges, parallel edges, nodes that never live.

    Its limit of memory is between the least and the most that its nodes can use at one time; one in six has
    none. It may have no solution.
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(1, strategies + 1, nodes)
    ends = random.integers(0, nodes, (nodes + 2, 2))
    tables = [random.integers(0, largest, (sizes[i], sizes[j])) for i, j in ends]
    for table in tables:
        table[random.random(table.shape) < 0.15] = FORBIDDEN
    begins = random.integers(0, 6, nodes)
    problem = Problem(
        node_costs=[random.integers(0, largest, size) for size in sizes],
        node_usages=[random.integers(0, 20, size) for size in sizes],
        intervals=np.stack([begins, begins + random.integers(0, 5, nodes)], 1),
        edges=ends,
        tables=tables,
        edge_tables=np.arange(len(ends)),
    )
    if seed % 6 == 0:
        return problem
    least = problem.peak(np.array([usages.argmin() for usages in problem.node_usages]))
    most = problem.peak(np.array([usages.argmax() for usages in problem.node_usages]))
    return Problem(**{**vars(problem), "usage_limit": least + int(0.4 * (most - least))})


def by_trying_all(problem: Problem) -> int | None:
    """The least cost within the limit, or None where no choice is; looks at every choice."""
    least = None
    for choice in product(*(range(len(costs)) for costs in problem.node_costs)):
        strategies = np.array(choice)
        cost = problem.cost(strategies)
        fits = problem.usage_limit is None or problem.peak(strategies) <= problem.usage_limit
        if cost < FORBIDDEN and fits and (least is None or cost < least):
            least = cost
    return least
