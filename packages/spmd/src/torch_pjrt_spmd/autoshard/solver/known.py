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
    nodes: int,
    seed: int,
    *,
    strategies: int = 6,
    follow: float = 0.5,
    scale: int = 1000,
    binding: int = 1,
    kinds: int | None = None,
) -> tuple[Problem, int]:
    """A problem whose limit of memory binds, and its least cost.

    Each node reads one to three earlier ones, mostly near. A share `follow` of the nodes may choose only
    what fits the first that they read, as elementwise operators do. Costs are about `scale`.

    binding   at how many times the limit binds, about: spread over all of the time, each with a price.
    kinds     how many distinct tables there are at most, as in programs whose layers repeat; unlimited,
              unless given.
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
    limit = int(used.max())
    price = max(1, scale // (100 * binding))
    cumulated = np.zeros(len(times) + 1, np.int64)
    cumulated[1:] = np.cumsum(_filled(times, used, limit, problem, best, binding) * price)
    own = cumulated[np.searchsorted(times, intervals[:, 1])]
    own = np.maximum(own - cumulated[np.searchsorted(times, intervals[:, 0])], 0)
    most = int(own.max(initial=0)) * 500
    known: dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]] = {}
    costs = []
    for i in range(nodes):
        worse = random.integers(0, scale, sizes[i]) * (np.arange(sizes[i]) != best[i])
        costs.append((worse - own[i] * usages[i] + most).astype(np.int64))
    for i, j, may_follow in pairs:
        is_like = may_follow and sizes[i] == sizes[j]
        of_kind = known.setdefault(
            (sizes[i], sizes[j], int(best[i]), int(best[j]), int(is_like)), []
        )
        if kinds is not None and len(of_kind) >= max(1, kinds // (2 * strategies**3)):
            table, shift = of_kind[random.integers(len(of_kind))]
        else:
            table = random.integers(0, scale, (sizes[i], sizes[j]))
            if is_like:
                moved = (np.arange(sizes[i]) + best[j] - best[i]) % sizes[i]
                table = np.full((sizes[i], sizes[i]), FORBIDDEN)
                table[np.arange(sizes[i]), moved] = random.integers(0, scale, sizes[i])
            table[best[i], best[j]] = 0
            # from the table to the node, which changes nothing
            shift = random.integers(0, scale, sizes[j])
            table = np.where(table >= FORBIDDEN, FORBIDDEN, table + shift)
            of_kind.append((table, shift))
        tables.append(table)
        costs[j] = costs[j] + scale - shift
    distinct = {id(t): t for t in tables}
    numbers = {key: k for k, key in enumerate(distinct)}
    problem = Problem(
        costs,
        usages,
        intervals,
        np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2),
        list(distinct.values()),
        np.array([numbers[id(t)] for t in tables], np.int64),
        limit,
    )
    return problem, problem.cost(best)


def _filled(
    times: np.ndarray,
    used: np.ndarray,
    limit: int,
    problem: Problem,
    best: np.ndarray,
    binding: int,
) -> np.ndarray:
    """Of each time whether the limit binds (int64, 0 or 1), with so much more used that it does.

    Nodes that live while there is room use more of it, whatever they choose: that changes no order among
    their strategies.
    """
    binds = (used == limit).astype(np.int64)
    room = limit - used
    by_begin = np.argsort(problem.intervals[:, 0], kind="stable")
    firsts = np.searchsorted(times, problem.intervals[:, 0])
    ends = np.searchsorted(times, problem.intervals[:, 1])
    for i in by_begin[:: max(1, len(by_begin) // max(1, binding))].tolist():
        a, b = int(firsts[i]), int(ends[i])
        if binding < 2 or b <= a or b - a == len(times):
            continue
        more = int(room[a:b].min())
        problem.node_usages[i] += more
        room[a:b] -= more
        binds |= room == 0
    return binds


def scattered(
    seed: int, *, nodes: int = 6, strategies: int = 3, largest: int = 100, signed: bool = False
) -> Problem:
    """A small problem at random: forbidden pairs, self edges, parallel edges, nodes that never live.

    Its limit of memory is between the least and the most that its nodes can use at one time; one in six has
    none. It may have no solution.

    signed   half of the costs are below nothing, some strategies are forbidden, tables are sums now and then.
    """
    random = np.random.default_rng(seed)
    sizes = random.integers(1, strategies + 1, nodes)
    ends = random.integers(0, nodes, (nodes + 2, 2))
    tables = [random.integers(0, largest, (sizes[i], sizes[j])) for i, j in ends]
    for table in tables:
        table[random.random(table.shape) < 0.15] = FORBIDDEN
    costs = [random.integers(0, largest, size) for size in sizes]
    if signed:
        costs = [np.where(random.random(len(c)) < 0.1, FORBIDDEN, c - largest // 2) for c in costs]
        for k, table in enumerate(tables):
            rows, columns = (random.integers(-largest, largest, n) for n in table.shape)
            is_sum = random.random() < 0.4
            tables[k] = (
                rows[:, None] + columns
                if is_sum
                else np.where(table < FORBIDDEN, table - largest // 2, table)
            )
    begins = random.integers(0, 6, nodes)
    problem = Problem(
        node_costs=costs,
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
        if fits and (least is None or cost < least) and problem.is_allowed(strategies):
            least = cost
    return least
