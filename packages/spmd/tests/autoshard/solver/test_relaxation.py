"""Bounds are never above the least cost, and no strategy of a best choice is called useless."""

import numpy as np
import pytest

from torch_pjrt_spmd.autoshard.solver.arrays import arrays_of, energy_of, price_costs, usage_of
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.core import core_of
from torch_pjrt_spmd.autoshard.solver.exact import try_all
from torch_pjrt_spmd.autoshard.solver.known import planted
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation
from torch_pjrt_spmd.autoshard.solver.search import search


def small_core(seed):
    problem, least = planted(14, seed, strategies=3, follow=0.2)
    core = core_of(problem, Contraction(problem))
    assert core.variables > 3
    return core, least


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_comes_close_to_the_least_cost_and_not_above(seed):
    core, least = small_core(seed)
    relaxation, known = Relaxation(arrays_of(core)), float(least - core.constant)

    for _ in range(150):
        relaxation.step(known)

    assert relaxation.bound <= known + 1e-6
    assert relaxation.bound >= known - 0.05 * abs(known)


@pytest.mark.parametrize("seed", range(6))
def test_the_strategies_of_a_best_choice_are_not_useless_and_others_are(seed):
    core, least = small_core(seed)
    best = try_all(core, 10.0).choice
    assert best is not None
    assert core.cost(best) == least
    relaxation, known = Relaxation(arrays_of(core)), float(least - core.constant)
    for _ in range(150):
        relaxation.step(known)

    useless = relaxation.useless(known)

    assert not useless[core.offsets[:-1] + best].any()
    assert useless.any()


def test_the_search_stays_within_the_limits_and_knows_what_it_gained():
    problem, least = planted(120, 3, follow=0.2)
    core = core_of(problem, Contraction(problem))
    arrays = arrays_of(core)
    relaxation = Relaxation(arrays)
    while not (relaxation.usage <= arrays.limits).all() or relaxation.energy > 1e18:
        relaxation.step(np.inf)
    choice = relaxation.choice.copy()
    before, usage, best = energy_of(arrays, choice), usage_of(arrays, choice), choice.copy()

    now, gained = search(
        arrays, price_costs(arrays, relaxation.prices), choice, usage, best, 60, 50, 0.0, 7
    )  # fmt: skip

    assert energy_of(arrays, choice) == pytest.approx(before + now, rel=1e-9)
    assert energy_of(arrays, best) == pytest.approx(before + gained, rel=1e-9)
    assert gained <= 0
    assert np.array_equal(usage, usage_of(arrays, choice))
    assert (usage_of(arrays, best) <= arrays.limits).all()
    assert core.cost(best) >= least
