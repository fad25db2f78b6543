"""Contraction and the core keep the cost and the memory of every choice that is left, and the least cost."""

from itertools import product

import numpy as np
import pytest

from torch_pjrt_spmd.autoshard.solver import FORBIDDEN, Infeasible, Problem
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction, with_strategies
from torch_pjrt_spmd.autoshard.solver.core import core_of, exact_sum
from torch_pjrt_spmd.autoshard.solver.known import by_trying_all, planted, scattered


@pytest.mark.parametrize("seed", range(12))
def test_choices_of_variables_cost_and_use_what_those_of_their_nodes_do(seed):
    problem = scattered(seed)
    try:
        contraction = Contraction(problem)
    except Infeasible as error:
        assert error.proven
        assert by_trying_all(problem) is None
        return
    core, least = core_of(problem, contraction), None
    for choice in product(*(range(size) for size in core.sizes())):
        variables = np.array(choice, np.int64)
        nodes = with_strategies(contraction, choice)
        if not core.is_allowed(variables):
            assert problem.cost(nodes) >= FORBIDDEN
            continue
        assert core.cost(variables) == problem.cost(nodes)
        fits = problem.usage_limit is None or problem.peak(nodes) <= problem.usage_limit
        assert bool((core.usage(variables) <= core.limits).all()) == fits
        if fits:
            cost = core.cost(variables)
            least = cost if least is None else min(least, cost)

    assert least == by_trying_all(problem)


def test_nodes_that_follow_others_are_no_variables():
    problem, _ = planted(300, 1, follow=1.0)

    variables = core_of(problem, Contraction(problem)).variables

    assert 0 < variables < 100


def test_a_node_none_of_whose_strategies_is_allowed_is_named():
    table = np.full((2, 2), FORBIDDEN)
    nothing = np.zeros(2, np.int64)
    problem = Problem(
        [nothing, nothing], [nothing, nothing], np.zeros((2, 2), np.int64),
        np.array([[0, 1]]), [table], np.array([0]),
    )  # fmt: skip

    with pytest.raises(Infeasible, match="node 0") as caught:
        Contraction(problem)
    assert caught.value.proven


def test_sums_beyond_64_bits_are_exact():
    numbers = np.full(100, 10**18 - 1, np.int64)

    assert exact_sum(numbers) == 100 * (10**18 - 1)
    assert exact_sum(-numbers) == -100 * (10**18 - 1)
