"""The cheapest plan that fits the memory, within one time for all that is tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch_pjrt_spmd.autoshard import solver
from torch_pjrt_spmd.autoshard.alternatives import polished
from torch_pjrt_spmd.autoshard.building import Built, build
from torch_pjrt_spmd.autoshard.chips import Chip
from torch_pjrt_spmd.autoshard.needs import memory_of
from torch_pjrt_spmd.autoshard.network import network_of
from torch_pjrt_spmd.autoshard.none_fits import least_choice, least_lives, no_plan
from torch_pjrt_spmd.autoshard.operators import Operators, operators_of
from torch_pjrt_spmd.autoshard.recording import Recorded
from torch_pjrt_spmd.autoshard.repeats import Tied, tied
from torch_pjrt_spmd.autoshard.said import Fixed, Said
from torch_pjrt_spmd.autoshard.solver.problem import Infeasible, Problem, Solution
from torch_pjrt_spmd.spec import ShardingError

_MOST_TRIES = 4  # with smaller limits
_LIMITS = (1.0, 1.5)  # of what must live at least
_NEARLY_FULL = 0.8  # of the memory: plans that compute layers again are looked at, too
_MAY_BE_FULL = 0.3  # of the memory, by what must live at least
_GOOD = 1e-3  # of its cost: what a plan may cost more than the best, where there is more to try
_SHORTEST = 0.3  # seconds of a try


def solve(problem: Problem, seconds: float, gap: float = 0.0) -> Solution:
    """The solver's answer, or the choice that needs least memory where it finds none within the limit.

    The limit is one that this choice keeps. The time is for all of it.
    """
    until = time.monotonic() + seconds
    try:
        found = solver.solve(problem, seconds=0.8 * seconds, gap=gap)
    except Infeasible:
        choice = least_choice(problem)
        found = Solution(choice, problem.cost(choice), 0, False, seconds)
    if found.proven:
        return found
    choice = polished(problem, found.choice, max(0.1, until - time.monotonic()))
    return replace(found, choice=choice, cost=problem.cost(choice))


def fitting(built: Built, limit: int, seconds: float) -> tuple[Solution, int]:
    """The cheapest plan found that fits with what operators need besides, and its memory; else the smallest.

    The solver knows of what lives only. Where there is too much besides, it gets a smaller limit.
    """
    problem = built.problem
    until = time.monotonic() + seconds
    for left in range(_MOST_TRIES, 0, -1):
        if least_lives(problem) > (problem.usage_limit or limit):
            break
        share = max(_SHORTEST, (until - time.monotonic()) / min(left, 2))
        found = solve(problem, share, 0.0 if left == _MOST_TRIES else _GOOD)
        peak = memory_of(built, found.choice).peak
        if peak <= limit:
            return found, peak
        problem = replace(problem, usage_limit=(problem.usage_limit or limit) - (peak - limit))
    least = least_lives(built.problem)
    tight = [replace(built.problem, usage_limit=int(least * times)) for times in _LIMITS]
    share = max(_SHORTEST, min(2.0, (until - time.monotonic()) / len(tight)))
    small = [solve(p, share) for p in tight]
    return min(
        ((s, memory_of(built, s.choice).peak) for s in small), key=lambda of_plan: of_plan[1]
    )


@dataclass(slots=True)
class Search:
    """What is planned, and the ways in which it can be: layers computed again or not."""

    recorded: Recorded
    sizes: Mapping[str, int]
    chip: Chip
    limit: int
    across: Sequence[str]
    said: Said
    on_cpus: bool = False
    traced: tuple[Operators, Tied] | None = None

    def built(self, sizes: Mapping[str, int], again: bool) -> Built:
        """The problem on axes of such sizes."""
        if self.traced is None:
            operators = operators_of(self.recorded.graph)
            self.traced = operators, tied(operators, self.recorded.inputs)
        operators, classes = self.traced
        axes = {name: n for name, n in sizes.items() if n > 1}
        network = network_of(list(axes), list(axes.values()), self.chip, self.across)
        return build(
            self.recorded,
            operators,
            classes,
            network,
            self.chip,
            self.limit,
            Fixed(self.recorded, operators, classes, axes, self.said),
            again,
            self.on_cpus,
        )

    def first_built(self) -> Built:
        """The problem with all activations kept, or with layers computed again where that is said."""
        built = self.built(self.sizes, False)
        self._check_again([m for c in built.choices for m in c.modules])
        return self.built(self.sizes, True) if self.said.again else built

    def best(
        self, built: Built, seconds: float, half: Callable[[], Recorded | None]
    ) -> tuple[Built, Solution]:
        """The cheapest plan that fits, from what was built first. `NoPlan` where none does.

        half   the function recorded with half the batch; None where it does not take it.
        """
        until = time.monotonic() + seconds
        # A part of the time is left for plans with layers that are computed again, where there may be some.
        free = bool(built.choices) and self.said.again is None
        least = least_lives(built.problem)
        may_be_full = free and least > _MAY_BE_FULL * self.limit
        share = (until - time.monotonic()) * (0.5 if may_be_full else 1.0)
        found, peak = fitting(built, self.limit, max(share, _SHORTEST))
        again, of_again, peak_again = built, found, peak
        if free and peak >= _NEARLY_FULL * self.limit:
            again = self.built(self.sizes, True)
            left = max(until - time.monotonic(), _SHORTEST)
            of_again, peak_again = fitting(again, self.limit, left)
        fits = peak <= self.limit
        if peak_again <= self.limit and (not fits or of_again.cost < found.cost):
            return again, of_again
        if fits:
            return built, found
        raise no_plan(
            again,
            peak_again,
            self.limit,
            lambda sizes: self.built(sizes, again.again),
            lambda: self._of_half(half()),
        )

    def _check_again(self, possible: Sequence[str]) -> None:
        """That what is to be computed again can be: all layers that repeat, or none."""
        said = self.said.again
        if said and set(said) != set(possible):
            raise ShardingError(
                "These modules cannot be computed again by a plan.",
                saw=f"`rematerialized` of {list(said)}",
                expected=f"[], or all of {list(possible)}" if possible else "[]: no layers repeat",
                hint="without `rematerialized` in the file, what is computed again is found anew; "
                "`torch.utils.checkpoint` in the model does it anywhere",
            )

    def _of_half(self, recorded: Recorded | None) -> Built | None:
        """The problem of half the batch."""
        if recorded is None:
            return None
        search = replace(self, recorded=recorded, traced=None)
        traced = search.built(self.sizes, False)
        return search.built(self.sizes, True) if traced.choices else traced
