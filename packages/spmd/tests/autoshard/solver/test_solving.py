"""`solve` gives the least cost of problems where it is known, says so, and ends in time."""

import time

import numpy as np
import pytest

from hangs import SLACK_S
from torch_pjrt_spmd.autoshard.solver import FORBIDDEN, Infeasible, Problem, solve, solving
from torch_pjrt_spmd.autoshard.solver.arrays import arrays_of
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.core import core_of
from torch_pjrt_spmd.autoshard.solver.episodes import Episodes
from torch_pjrt_spmd.autoshard.solver.incumbent import Clock, Incumbent
from torch_pjrt_spmd.autoshard.solver.known import by_trying_all, planted, scattered
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation

SECONDS = 60.0  # more than any of these needs: they end when the best is proven


@pytest.mark.parametrize("seed", range(24))
def test_of_a_small_problem_the_least_cost_is_found_and_proven(seed):
    problem = scattered(seed)
    least = by_trying_all(problem)

    if least is None:
        with pytest.raises(Infeasible) as caught:
            solve(problem, SECONDS)
        assert caught.value.proven
        return
    solution = solve(problem, SECONDS)

    assert (solution.cost, solution.lower_bound, solution.proven) == (least, least, True)
    assert problem.cost(solution.choice) == least
    assert problem.usage_limit is None or problem.peak(solution.choice) <= problem.usage_limit


def test_among_the_small_problems_are_some_without_a_solution_and_some_with():
    found = [by_trying_all(scattered(seed)) is not None for seed in range(24)]

    assert 2 <= sum(found) <= 22


@pytest.mark.parametrize("seed", range(4))
def test_of_a_problem_with_a_planted_choice_the_least_cost_is_found(seed):
    problem, least = planted(250, seed)
    freely = solve(Problem(**{**vars(problem), "usage_limit": None}), SECONDS)
    assert freely.cost < least  # the limit binds

    solution = solve(problem, SECONDS)

    assert solution.cost == problem.cost(solution.choice) == least
    assert solution.proven
    assert problem.usage_limit is not None
    assert problem.peak(solution.choice) <= problem.usage_limit


def test_costs_that_floats_do_not_hold_are_exact():
    problem = scattered(4)
    step, huge = 10**15, 2**53
    costs = [step * own + huge + np.arange(len(own)) for own in problem.node_costs]
    problem = Problem(**{**vars(problem), "node_costs": costs})

    solution = solve(problem, SECONDS)

    assert solution.cost == problem.cost(solution.choice) == by_trying_all(problem)
    assert solution.cost > 2**53


def test_a_limit_that_the_least_of_all_nodes_exceeds_is_infeasible_with_the_peak():
    two, one = np.array([1, 2]), np.array([5, 4])
    problem = Problem(
        [one, one], [two, two], np.array([[0, 3], [2, 4]]),
        np.zeros((0, 2), np.int64), [], np.zeros(0, np.int64), usage_limit=1,
    )  # fmt: skip

    with pytest.raises(Infeasible, match="limit of 1: at time 2, nodes use 2") as caught:
        solve(problem, SECONDS)
    assert (caught.value.least_peak, caught.value.time, caught.value.proven) == (2, 2, True)


def infeasible() -> Problem:
    """Each node alone has room, but the two are to choose the same."""
    same = np.where(np.eye(2, dtype=bool), 0, FORBIDDEN)
    free = np.zeros(2, np.int64)
    return Problem(
        [free, free], [np.array([1, 9]), np.array([9, 1])], np.array([[0, 2], [0, 2]]),
        np.array([[0, 1]]), [same], np.array([0]), usage_limit=5,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_what_is_small_is_decided_without_threads(seed, monkeypatch):
    monkeypatch.setattr(solving, "_run", None)
    problem = scattered(seed)
    least = by_trying_all(problem)

    if least is None:
        with pytest.raises(Infeasible) as caught:
            solve(problem, SECONDS)
        assert caught.value.proven
    else:
        assert solve(problem, SECONDS).failure is None


def test_where_pairs_and_memory_together_leave_nothing_it_is_infeasible(monkeypatch):
    monkeypatch.setattr(solving, "_run", None)  # no variables are left: nothing to search
    with pytest.raises(Infeasible) as caught:
        solve(infeasible(), SECONDS)
    assert caught.value.proven
    assert caught.value.least_peak == 10


@pytest.mark.parametrize("price", [0.0, 1.0, 1e30, 1e300])
def test_no_choice_is_repaired_where_there_is_none_however_high_prices_have_grown(price):
    problem = infeasible()
    core = core_of(problem, Contraction(problem))
    relaxation = Relaxation(arrays_of(core))
    relaxation.prices = np.full(len(relaxation.prices), price)
    episodes = Episodes(relaxation.arrays, relaxation, Incumbent(core, Clock.of(SECONDS)), 0)

    assert episodes.repaired(np.zeros(len(relaxation.arrays.offsets) - 1, np.int64)) is None


def test_a_problem_without_nodes_has_the_empty_choice():
    nothing = np.zeros((0, 2), np.int64)
    solution = solve(Problem([], [], nothing, nothing, [], np.zeros(0, np.int64), 5), SECONDS)

    assert (solution.choice.tolist(), solution.cost, solution.proven) == ([], 0, True)


def test_a_solution_comes_within_the_time_though_nothing_is_proven():
    problem, _ = planted(3000, 5, follow=0.3)
    problem = Problem(**{**vars(problem), "usage_limit": None})
    began = time.monotonic()

    try:
        solve(problem, 0.5)
    except Infeasible as error:  # too busy a machine to have found any
        assert not error.proven

    assert time.monotonic() - began < SLACK_S  # preparing included


def test_each_better_cost_and_bound_is_told():
    problem, least = planted(250, 7)
    told = []

    solution = solve(
        problem, SECONDS, watcher=lambda seconds, cost, bound: told.append((cost, bound))
    )

    costs = [cost for cost, _ in told if cost is not None]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == solution.cost == least


def test_the_search_ends_at_a_cost_that_is_good_enough():
    problem, least = planted(250, 8)

    solution = solve(problem, SECONDS, gap=0.5)

    assert solution.cost >= least
    assert solution.cost - solution.lower_bound <= 0.5 * solution.cost
    assert solution.seconds < SECONDS
