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
from torch_pjrt_spmd.autoshard.solver.dominated import instead
from torch_pjrt_spmd.autoshard.solver.episodes import Episodes
from torch_pjrt_spmd.autoshard.solver.exact import closest, is_small, try_all
from torch_pjrt_spmd.autoshard.solver.incumbent import Clock, Incumbent, Watcher
from torch_pjrt_spmd.autoshard.solver.plain import PlainStart
from torch_pjrt_spmd.autoshard.solver.problem import Infeasible, Problem, Solution
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation

WORTHWHILE = 0.1  # share of strategies that are useless for which to start over without them
WORTH_DROPPING = 0.005  # share of those that are dominated, likewise
ROUNDS = 4  # of looking for dominated strategies, at most
LOOK_S = 0.25  # between two looks at whether it is over
LATE_S = 1.0  # for a first choice, where there is none when the time is up


def solve(
    problem: Problem,
    seconds: float = 60.0,
    *,
    workers: int = 2,
    gap: float = 0.0,
    seed: int = 0,
    watcher: Watcher | None = None,
    stop: threading.Event | None = None,
) -> Solution:
    """The cheapest choice found within the time, which is wall clock; sooner if it is proven to be the best.

    `gap`: good enough, and the end, is a cost of which the bound falls short by at most this share.
    `workers` threads search at once. `watcher(seconds, cost, lower_bound)` is called, from any of them, at
    each improvement. Once `stop` is set, what is known is returned as soon as can be. Raises `Infeasible`
    where no choice within the limit is found. What fails after one was found is not raised.
    """
    clock = Clock.of(seconds, stop, watcher, gap)
    contraction = Contraction(problem)
    work = _Work(problem, contraction, core_of(problem, contraction), clock)
    _check_least(problem, work.core)
    failure: Exception | None = None
    try:
        work.start()
        work.drop_dominated()
        work.search(workers, seed)
    except Exception as error:  # memory that is full, say; what is known already is an answer
        failure = error
    if work.best() is None and not work.incumbent.is_impossible:
        work.last_resort()
    found = work.best()
    failure = failure or next(iter(work.failures), None)
    if found is None:
        try:
            if failure is not None and not work.incumbent.is_impossible:
                raise failure
        finally:
            del failure  # its traceback holds this frame, and with it the problem
        raise _none_found(problem, work.incumbent, proven=work.incumbent.is_impossible)
    cost, choice = found
    known = work.incumbent.bound
    bound = min(cost, known if known is not None else -(2**62))
    return Solution(choice, cost, bound, bound == cost, time.monotonic() - clock.began, failure)


class _Work:
    """A problem while it is made smaller and searched; what was found is never lost on the way.

    kept   the best choice of nodes before what is going on now, and its cost.
    """

    def __init__(
        self, problem: Problem, contraction: Contraction, core: Core, clock: Clock
    ) -> None:
        self.problem, self.contraction, self.core, self.clock = problem, contraction, core, clock
        self.incumbent = Incumbent(core, clock)
        self.kept: tuple[int, np.ndarray] | None = None
        self.failures: list[Exception] = []  # of threads
        self._is_changing = (
            False  # the contraction and the incumbent are not about the same variables
        )
        self._took = time.monotonic() - clock.began  # what a contraction takes, at most

    def start(self) -> None:
        """A first choice, before all that takes long or may fail."""
        until = time.monotonic() + 0.05 * self.clock.seconds
        start_plainly(self.incumbent, until)

    def drop_dominated(self) -> None:
        """Go on without dominated strategies, while there are some worth the time."""
        for _ in range(ROUNDS):
            if self.clock.left() < 5 * self._took:
                return
            positions = instead(self.core, time.monotonic() + 0.05 * self.clock.left())
            gone = positions != np.arange(len(positions))
            if gone.mean() < WORTH_DROPPING if len(gone) else True:
                return
            self._without(gone, positions)

    def search(self, workers: int, seed: int) -> None:
        """Until the time is up, or the best is proven."""
        if is_small(self.core) and not self.clock.is_over:
            self._try_all()
        prices: np.ndarray | None = None
        while not self.incumbent.is_over and not self.incumbent.is_impossible:
            relaxation = Relaxation(arrays_of(self.core), prices)
            # Towards the end, a smaller core is not worth what it takes to get there.
            looks_until = self.clock.deadline - 3 * self._took
            useless = _run(relaxation, self.incumbent, workers, seed, looks_until, self.failures)
            if useless is None or self.incumbent.choice is None:
                return
            times = self.core.checkpoints
            self._without(useless, np.arange(len(useless)))
            prices = _moved(relaxation.prices, times, self.core.checkpoints)

    def last_resort(self) -> None:
        """A choice in plain Python, though the time is up: rather late than none."""
        until = time.monotonic() + max(LATE_S, 0.03 * self.clock.seconds)
        choice = PlainStart(self.core).choices(lambda: time.monotonic() > until)
        if choice is not None:
            self.incumbent.offer(choice)

    def best(self) -> tuple[int, np.ndarray] | None:
        """The cheapest choice of nodes (int64), and its cost; checked by the problem itself."""
        if self.incumbent.choice is not None and not self._is_changing:
            nodes = with_strategies(self.contraction, self.incumbent.choice.tolist())
            limit = self.problem.usage_limit
            fits = limit is None or self.problem.peak(nodes) <= limit
            if fits and self.problem.is_allowed(nodes):
                cost = self.problem.cost(nodes)
                if self.kept is None or cost < self.kept[0]:
                    self.kept = cost, nodes
        return self.kept

    def _try_all(self) -> None:
        incumbent = self.incumbent
        tried = try_all(self.core, 0.1 * incumbent.clock.seconds)
        if tried.choice is not None:
            incumbent.offer(tried.choice)
            if tried.is_all:
                incumbent.bound = incumbent.cost
        elif tried.is_all:
            nearest = closest(self.core, 0.2 * incumbent.clock.seconds)
            if nearest is not None:
                incumbent.offer(nearest)
            incumbent.is_impossible = True

    def _without(self, gone: np.ndarray, positions: np.ndarray) -> None:
        """Go on without these strategies (bool [positions]); of a choice, `positions` are taken instead."""
        began = time.monotonic()
        core, contraction = self.core, self.contraction
        nodes: np.ndarray | None = None
        self.best()
        if self.incumbent.choice is not None:
            chosen = positions[core.offsets[:-1] + self.incumbent.choice] - core.offsets[:-1]
            nodes = with_strategies(contraction, chosen.tolist())
            gone = gone.copy()
            gone[core.offsets[:-1] + chosen] = False  # rounding may have called one of them useless
        self._is_changing = True
        for v, i in enumerate(contraction.left):
            of_variable = gone[core.offsets[v] : core.offsets[v + 1]]
            if of_variable.any():
                contraction.forbid(i, of_variable)
        contraction.settle()
        smaller = core_of(self.problem, contraction)
        choice = None if nodes is None else variable_strategies(contraction, nodes)
        self.core, self.incumbent = smaller, self.incumbent.moved(smaller, choice)
        self._is_changing = False
        self._took = max(self._took, time.monotonic() - began)


def _run(
    relaxation: Relaxation,
    incumbent: Incumbent,
    workers: int,
    seed: int,
    looks_until: float,
    failures: list[Exception],
) -> np.ndarray | None:
    """Relax and search, until time is up, or so many strategies are useless that to go on without them pays.

    Gives those (bool [positions]), or None.
    """
    found: list[np.ndarray] = []
    ended = threading.Semaphore(0)

    def guarded(work: int) -> None:
        try:
            episodes = Episodes(relaxation.arrays, relaxation, incumbent, seed + work)
            if work == 0:
                found.extend(_relax(relaxation, incumbent, episodes, looks_until))
            else:
                episodes.compile()
                incumbent.is_search_compiled = True
                while not incumbent.is_over:
                    episodes.run()
        except Exception as error:
            failures.append(error)
            incumbent.stopped = True
        finally:
            ended.release()

    threads = [
        threading.Thread(target=guarded, args=(work,), daemon=True)
        for work in range(max(2, workers))
    ]
    for thread in threads:
        thread.start()
    if incumbent.choice is None:
        start_plainly(incumbent)
    running = len(threads)
    while (
        running and not incumbent.clock.is_over
    ):  # one that is still compiling then is left behind
        if ended.acquire(timeout=min(LOOK_S, max(0.0, incumbent.clock.left()))):
            running -= 1
    incumbent.stopped = True
    return found[0] if found else None


def start_plainly(incumbent: Incumbent, until: float = np.inf) -> None:
    """A first choice on this thread, unless others have one before."""
    choice = PlainStart(incumbent.core).choices(
        lambda: incumbent.choice is not None or incumbent.is_over or time.monotonic() > until
    )
    if choice is not None:
        incumbent.offer(choice)


def _relax(
    relaxation: Relaxation, incumbent: Incumbent, episodes: Episodes, looks_until: float
) -> list[np.ndarray]:
    """Raise the bound and offer the choices met; once the bound rises slowly, search for most of the time.

    Ends with the strategies that are useless, where there are many of them before `looks_until`.
    """
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
        looks = time.monotonic() < looks_until and not incumbent.is_over
        if looks and relaxation.waited_for_bound > 20 and gap < 0.7 * looked_at:
            looked_at = gap
            useless = relaxation.useless(known)
            if useless.mean() > WORTHWHILE:
                incumbent.stopped = True
                return [useless]
        is_slow = relaxation.waited_for_bound > 200 or relaxed > 0.5 * incumbent.clock.seconds
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
