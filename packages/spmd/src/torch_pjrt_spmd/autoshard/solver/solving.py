"""`solve`: contraction, then two threads: one relaxes and rounds, the other searches."""

from __future__ import annotations

import threading
import time

import numpy as np

from torch_pjrt_spmd.autoshard.solver.arrays import arrays_of
from torch_pjrt_spmd.autoshard.solver.contraction import (
    Contraction,
    variable_strategies,
    with_strategies,
)
from torch_pjrt_spmd.autoshard.solver.core import NEVER, Core, core_of
from torch_pjrt_spmd.autoshard.solver.episodes import Episodes
from torch_pjrt_spmd.autoshard.solver.exact import closest, is_small, try_all
from torch_pjrt_spmd.autoshard.solver.incumbent import Incumbent, Watcher
from torch_pjrt_spmd.autoshard.solver.problem import Infeasible, Problem, Solution
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation

WORTHWHILE = 0.1  # share of strategies that are useless for which to start over without them


def solve(
    problem: Problem,
    seconds: float = 60.0,
    *,
    workers: int = 2,
    gap: float = 0.0,
    seed: int = 0,
    watcher: Watcher | None = None,
) -> Solution:
    """The cheapest choice found within the time, which is wall clock; sooner if it is proven to be the best.

    `gap`: good enough, and the end, is a cost of which the bound falls short by at most this share.
    `workers` threads search at once. `watcher(seconds, cost, lower_bound)` is called, from any of them, at
    each improvement. Raises `Infeasible` where no choice within the limit is found.
    """
    began = time.monotonic()
    contraction = Contraction(problem)
    core = core_of(problem, contraction)
    _check_least(problem, core)
    incumbent = Incumbent(core, began, began + seconds, watcher, gap)
    if is_small(core):
        tried = try_all(core, 0.1 * seconds)
        if tried.choice is not None:
            incumbent.offer(tried.choice)
            if tried.is_all:
                incumbent.bound = incumbent.cost
        elif tried.is_all:
            nearest = closest(core, 0.2 * seconds)
            if nearest is not None:
                incumbent.offer(nearest)
            raise _none_found(problem, incumbent, proven=True)
    prices: np.ndarray | None = None
    while not incumbent.is_over:
        arrays = arrays_of(core)
        relaxation = Relaxation(arrays, prices)
        useless = _run(relaxation, incumbent, workers, seed)
        if useless is None or incumbent.choice is None:
            break
        nodes = with_strategies(contraction, incumbent.choice.tolist())
        for v, i in enumerate(contraction.left):
            gone = useless[core.offsets[v] : core.offsets[v + 1]]
            if gone.any():
                contraction.forbid(i, gone)
        contraction.settle()
        smaller = core_of(problem, contraction)
        prices = _moved(relaxation.prices, core.checkpoints, smaller.checkpoints)
        core, incumbent = smaller, incumbent.moved(smaller, variable_strategies(contraction, nodes))
    if incumbent.choice is None or incumbent.cost is None:
        raise _none_found(problem, incumbent, proven=incumbent.is_impossible)
    choice = with_strategies(contraction, incumbent.choice.tolist())
    cost = incumbent.cost
    bound = min(cost, incumbent.bound if incumbent.bound is not None else -(2**62))
    return Solution(choice, cost, bound, bound == cost, time.monotonic() - began)


def _run(
    relaxation: Relaxation, incumbent: Incumbent, workers: int, seed: int
) -> np.ndarray | None:
    """Relax and search, until time is up, or so many strategies are useless that to go on without them pays.

    Gives those (bool [places]), or None.
    """
    failures: list[BaseException] = []
    found: list[np.ndarray] = []

    def guarded(work: int) -> None:
        episodes = Episodes(relaxation.arrays, relaxation, incumbent, seed + work)
        try:
            if work == 0:
                found.extend(_relax(relaxation, incumbent, episodes))
            else:
                episodes.compile()
                incumbent.is_search_compiled = True
                while not incumbent.is_over:
                    episodes.run()
        except BaseException as error:
            failures.append(error)
            incumbent.stopped = True

    threads = [
        threading.Thread(target=guarded, args=(work,), daemon=True)
        for work in range(max(2, workers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:  # one that is still compiling is left behind
        thread.join(max(0.0, incumbent.deadline - time.monotonic()))
    incumbent.stopped = True
    if failures:
        raise failures[0]
    return found[0] if found else None


def _relax(relaxation: Relaxation, incumbent: Incumbent, episodes: Episodes) -> list[np.ndarray]:
    """Raise the bound and offer the choices met; once the bound rises slowly, search for most of the time."""
    constant, most = incumbent.core.constant, incumbent.core.most()
    relaxed, searched, looked_at = 0.0, 0.0, 2.0
    while not incumbent.is_over:
        began = time.monotonic()
        known = np.inf if incumbent.cost is None else float(incumbent.cost - constant)
        relaxation.step(known)
        if relaxation.energy < min(known, NEVER):
            incumbent.offer(relaxation.choice)
        bound = relaxation.bound
        incumbent.raise_bound(bound, relaxation.error(bound))
        if incumbent.cost is None and bound - relaxation.error(bound) > most:
            incumbent.is_impossible = incumbent.stopped = True
        relaxed += time.monotonic() - began
        gap = (known - bound) / max(1.0, abs(known)) if np.isfinite(known) else np.inf
        if relaxation.waited_for_bound > 20 and gap < 0.7 * looked_at and not incumbent.is_over:
            looked_at = gap
            useless = relaxation.useless(known)
            if useless.mean() > WORTHWHILE:
                incumbent.stopped = True
                return [useless]
        is_slow = relaxation.waited_for_bound > 200 or relaxed > 0.5 * incumbent.seconds
        if incumbent.is_search_compiled and is_slow and searched < relaxed:
            began = time.monotonic()
            episodes.run()
            searched += time.monotonic() - began
    return []


def _moved(prices: np.ndarray, times: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Prices of checkpoints at `times`, each given to the first of the `new` ones that is not before it."""
    moved = np.zeros(len(new))
    if len(new):
        np.add.at(moved, np.minimum(np.searchsorted(new, times), len(new) - 1), prices)
    return moved


def _check_least(problem: Problem, core: Core) -> None:
    if len(core.limits) and core.limits.min() < 0 and problem.usage_limit is not None:
        worst = int(core.limits.argmin())
        peak, time_then = (
            problem.usage_limit - int(core.limits[worst]),
            int(core.checkpoints[worst]),
        )
        raise Infeasible(
            f"No choice is within the limit of {problem.usage_limit}: at time {time_then}, nodes use {peak} "
            "at least.",
            least_peak=peak,
            time=time_then,
            proven=True,
        )


def _none_found(problem: Problem, incumbent: Incumbent, proven: bool) -> Infeasible:
    what = "No choice is" if proven else "No choice was found"
    if incumbent.least_excess is None:
        return Infeasible(
            f"{what} within the limit of {problem.usage_limit}, without a forbidden pair.",
            least_peak=None,
            time=None,
            proven=proven,
        )
    excess, _, at = incumbent.least_excess
    peak = (problem.usage_limit or 0) + excess
    return Infeasible(
        f"{what} within the limit of {problem.usage_limit}: the closest uses {peak}, at time {at}.",
        least_peak=peak,
        time=at,
        proven=proven,
    )
