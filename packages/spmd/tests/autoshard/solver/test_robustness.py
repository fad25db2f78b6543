"""What was found is never lost: not to failures, signals, watchers, or a time that is too short."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from hangs import HANGS_S, SLACK_S
from torch_pjrt_spmd.autoshard.solver import (
    FORBIDDEN,
    Infeasible,
    Problem,
    from_json,
    solve,
    solving,
)
from torch_pjrt_spmd.autoshard.solver.contraction import Contraction
from torch_pjrt_spmd.autoshard.solver.core import core_of
from torch_pjrt_spmd.autoshard.solver.dominated import instead
from torch_pjrt_spmd.autoshard.solver.episodes import Episodes
from torch_pjrt_spmd.autoshard.solver.exact import try_all
from torch_pjrt_spmd.autoshard.solver.known import by_trying_all, planted, scattered
from torch_pjrt_spmd.autoshard.solver.plain import PlainStart
from torch_pjrt_spmd.autoshard.solver.reading import to_json
from torch_pjrt_spmd.autoshard.solver.relaxation import Relaxation

SECONDS = 60.0
HARD = {"follow": 0.0, "strategies": 9, "binding": 300}  # not proven in seconds


def is_within(problem, choice):
    return problem.is_allowed(choice) and problem.peak(choice) <= problem.usage_limit


@pytest.mark.parametrize("fault", [MemoryError, BrokenPipeError, IndexError])
@pytest.mark.parametrize(
    "where", [(Episodes, "run"), (Relaxation, "step"), (solving._Work, "_without")]
)
def test_choice_that_was_found_is_returned_though_something_fails(monkeypatch, fault, where):
    problem, least = planted(400, 1, **HARD)
    told = threading.Event()
    real = getattr(*where)

    def fails_once_there_is_one(*arguments):
        if told.is_set():
            raise fault("on purpose")
        return real(*arguments)

    monkeypatch.setattr(*where, fails_once_there_is_one)

    def watch(_, cost, __):
        if cost is not None:
            told.set()

    solution = solve(problem, 20.0, watcher=watch)

    assert is_within(problem, solution.choice)
    assert solution.cost == problem.cost(solution.choice) >= least
    assert solution.lower_bound <= least
    assert solution.failure is None or isinstance(solution.failure, fault)


def test_first_choice_comes_without_the_search_where_that_fails(monkeypatch):
    problem, least = planted(400, 2, **HARD)

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(solving, "Relaxation", fails)
    solution = solve(problem, 20.0)

    assert is_within(problem, solution.choice)
    assert solution.cost >= least


def test_what_fails_before_anything_is_found_is_raised(monkeypatch):
    problem, _ = planted(400, 2, **HARD)

    def fails(*_):
        raise MemoryError("on purpose")

    monkeypatch.setattr(solving, "Relaxation", fails)
    monkeypatch.setattr(PlainStart, "choices", lambda *_: None)
    with pytest.raises(MemoryError, match="on purpose"):
        solve(problem, 20.0)


def test_what_is_proven_stays_so_though_a_thread_fails(monkeypatch):
    problem, _ = planted(400, 2, **HARD)

    def proves_and_fails(relaxation, incumbent, workers, seed, looks_until, failures):
        incumbent.is_impossible = True
        failures.append(MemoryError("on purpose"))

    monkeypatch.setattr(solving, "_run", proves_and_fails)
    monkeypatch.setattr(PlainStart, "choices", lambda *_: None)
    with pytest.raises(Infeasible) as caught:
        solve(problem, 20.0)
    assert caught.value.proven


def test_watcher_that_fails_costs_nothing():
    problem, least = planted(250, 3)

    def fails(*_):
        raise BrokenPipeError

    assert solve(problem, SECONDS, watcher=fails).cost == least


def test_whole_time_is_used_though_contraction_took_long(monkeypatch):
    """A smaller core is not worth it then; the search goes on in the one there is."""
    problem, least = planted(400, 9, **HARD)
    monkeypatch.setattr(solving._Work, "drop_dominated", lambda work: setattr(work, "_took", 1e6))

    solution = solve(problem, 4.0)

    assert solution.failure is None
    assert solution.proven or solution.seconds > 3.5
    assert solution.cost >= least


@pytest.mark.parametrize("after", [0.0, 1.0])
def test_stop_ends_it_with_what_is_known(after):
    problem, least = planted(1000, 4, **HARD)
    stop = threading.Event()
    threading.Timer(after, stop.set).start()
    began = time.monotonic()

    solution = solve(problem, 300.0, stop=stop)

    assert time.monotonic() - began < SLACK_S
    assert is_within(problem, solution.choice)
    assert solution.cost >= least


def test_no_time_at_all_gives_a_choice():
    problem, least = planted(1000, 5)

    solution = solve(problem, 0.0)

    assert is_within(problem, solution.choice)
    assert least <= solution.cost


@pytest.mark.parametrize("seed", range(12))
def test_plain_start_is_within_the_limits(seed):
    problem, _ = planted(600, seed, follow=0.1 * (seed % 7), binding=1 + 40 * (seed % 3))
    core = core_of(problem, Contraction(problem))

    choice = PlainStart(core).choices(lambda: False)

    assert choice is not None
    assert core.is_allowed(choice)
    assert (core.usage(choice) <= core.limits).all()


@pytest.mark.parametrize("seed", range(24))
def test_least_cost_stays_without_what_is_dominated(seed):
    """Also with costs below nothing, and strategies that are forbidden."""
    problem = scattered(seed, nodes=7, strategies=4, largest=6, signed=seed % 2 == 1)
    least = by_trying_all(problem)
    try:
        contraction = Contraction(problem)
    except Infeasible:
        assert least is None
        return
    core = core_of(problem, contraction)
    gone = instead(core) != np.arange(len(core.costs))
    for v, i in enumerate(contraction.left):
        contraction.forbid(i, gone[core.offsets[v] : core.offsets[v + 1]])
    contraction.settle()

    smaller = core_of(problem, contraction)
    found = try_all(smaller, SECONDS).choice

    assert (None if found is None else smaller.cost(found)) == least


def test_some_strategies_are_dominated():
    cores = [core_of(p, Contraction(p)) for p, _ in (planted(300, s, follow=0.2) for s in range(3))]

    assert all((instead(core) != np.arange(len(core.costs))).any() for core in cores)


@pytest.mark.parametrize("seed", range(24))
def test_costs_below_nothing_keep_forbidden_pairs_forbidden(seed):
    problem = scattered(seed, signed=True)
    least = by_trying_all(problem)

    if least is None:
        with pytest.raises(Infeasible):
            solve(problem, SECONDS)
        return
    solution = solve(problem, SECONDS)
    assert (solution.cost, solution.proven) == (least, True)
    assert problem.is_allowed(solution.choice)


def test_forbidden_strategy_stays_forbidden_beside_a_cost_below_nothing():
    """A table of sums has numbers below nothing for its rows."""
    nodes = {
        "intervals": [[0, 2]] * 3,
        "costs": [[0, 0], [0, 3], [FORBIDDEN, FORBIDDEN]],
        "usages": [[1, 1]] * 3,
    }
    edges = {"nodes": [[0, 1], [0, 2]], "costs": [[5, 6, 0, 1], [0, FORBIDDEN, FORBIDDEN, 0]]}
    problem = from_json({"problem": {"nodes": nodes, "edges": edges, "usage_limit": 100}})

    with pytest.raises(Infeasible):
        solve(problem, SECONDS)


@pytest.mark.parametrize("binding", [1, 10, 100])
@pytest.mark.parametrize("kinds", [None, 300])
def test_limit_that_binds_at_many_times_is_kept_at_the_least_cost(binding, kinds):
    problem, least = planted(300, 6, binding=binding, kinds=kinds)

    solution = solve(problem, SECONDS)

    assert (solution.cost, solution.proven) == (least, True)
    assert is_within(problem, solution.choice)


@pytest.mark.parametrize("share", [0.6, 0.3, 0.1, 0.03])
def test_choice_is_found_though_the_limit_is_squeezed(share):
    """Towards the sum of the least that each variable uses, which no choice may reach."""
    problem, _ = planted(500, 7, binding=50)
    least = problem.peak(np.array([u.argmin() for u in problem.node_usages]))
    limit = least + int(share * ((problem.usage_limit or 0) - least))
    tight = Problem(**{**vars(problem), "usage_limit": limit})

    try:
        solution = solve(tight, 3.0)
    except Infeasible as error:
        assert error.proven and share < 0.3
        return
    assert is_within(tight, solution.choice)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_command_with_the_best_choice(number, tmp_path):
    problem, least = planted(1500, 8, **HARD)
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(to_json(problem)))
    command = [sys.executable, "-m", "torch_pjrt_spmd.autoshard", "solve", str(path)]
    with subprocess.Popen(
        [*command, "--seconds", "500", "--progress"], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None and process.stdout is not None
        assert "cost" in process.stderr.readline()
        os.kill(process.pid, number)
        printed = process.stdout.read()

        assert process.wait(HANGS_S) == 0
    choice = np.array(json.loads(printed.splitlines()[-1]))
    assert is_within(problem, choice)
    assert problem.cost(choice) >= least
