"""The agreement of processes, by a model of the store and of time: ranks that are late, give up, and go on.

`store_model.py` has the model.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from store_model import Killed, Scheduler, Store

from torch_pjrt.extend import Tape
from torch_pjrt_spmd.distributed import group as groups
from torch_pjrt_spmd.distributed import peers as module
from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer
from torch_pjrt_spmd.distributed.group import Group
from torch_pjrt_spmd.distributed.peers import PREPARE, SAME, Peers

LIMIT_S, LONGEST_PAUSE_S = 4.0, 0.5
TRIALS = 100


@dataclass
class Seen:
    """What a rank's calls gave, by their numbers, and how long each took."""

    ended: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    was_killed: bool = False


@dataclass
class Trial:
    """One interleaving of ranks that make the same calls."""

    seed: int
    size: int
    n_calls: int = 4
    late: float = 3.0  # how long a rank may take between calls, in limits
    faults: bool = False
    store: Any = None

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
        chance = random.Random(self.seed)
        scheduler = Scheduler(chance)
        monkeypatch.setattr(module, "time", scheduler)
        monkeypatch.setattr(module, "_LONGEST_PAUSE", LONGEST_PAUSE_S)
        self.store = Store(scheduler)
        seen = [Seen() for _ in range(self.size)]
        asks = [chance.choice(("agree", "agree", "exchange")) for _ in range(self.n_calls)]

        def program(rank: int) -> None:
            peers = Peers(self.store, range(self.size), rank, LIMIT_S)
            try:
                for number, ask in enumerate(asks):
                    pause = chance.choice((0.0, 0.0, 0.1, self.late * chance.random())) * LIMIT_S
                    scheduler.step(pause)
                    begun = scheduler.now
                    self._fault(scheduler, rank, chance)
                    try:
                        made = (
                            peers.agree(f"call {number}")
                            if ask == "agree"
                            else peers.exchange(f"{rank}")
                        )
                    except (PeerError, PeersDiffer, KeyboardInterrupt) as error:
                        made = error
                    scheduler.raising.pop(rank, None)
                    seen[rank].ended.append(made)
                    seen[rank].seconds.append(scheduler.now - begun)
            except Killed:
                seen[rank].was_killed = True

        scheduler.run([lambda rank=rank: program(rank) for rank in range(self.size)])
        return seen

    def _fault(self, scheduler: Scheduler, rank: int, chance: random.Random) -> None:
        if self.faults and chance.random() < 0.15:
            kind = chance.choice((Killed, KeyboardInterrupt))
            scheduler.raising[rank] = chance.randrange(8), kind()


def check(trial: Trial, seen: list[Seen]) -> None:
    """No rank goes on alone, and none waits for long."""
    for number in range(trial.n_calls):
        made = {r: s.ended[number] for r, s in enumerate(seen) if len(s.ended) > number}
        went = {r for r, x in made.items() if not isinstance(x, BaseException)}
        refused = {r for r, x in made.items() if isinstance(x, (PeerError, PeersDiffer))}
        assert not (went and refused), (trial.seed, number, made)
        assert len({str(made[r]) for r in went}) <= 1, (trial.seed, number, made)
    for one in seen:
        assert all(seconds <= LIMIT_S + 2 * LONGEST_PAUSE_S for seconds in one.seconds), (
            trial.seed,
            one,
        )


@pytest.mark.parametrize("size", [2, 3, 5])
def test_late_ranks_and_such_that_give_up_and_go_on_are_never_alone(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = together = 0
    for seed in range(TRIALS):
        trial = Trial(seed, size)
        seen = trial.run(monkeypatch)
        check(trial, seen)
        made = [x for s in seen for x in s.ended]
        given_up += sum(isinstance(x, PeerError) for x in made)
        together += sum(x == SAME for x in made)
        assert not any(isinstance(x, PeersDiffer) for x in made), seed
    assert given_up > TRIALS / 10
    assert together > TRIALS / 10


@pytest.mark.parametrize("size", [2, 3])
def test_killed_and_interrupted_ranks_leave_nobody_alone(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(TRIALS):
        trial = Trial(seed, size, faults=True)
        check(trial, trial.run(monkeypatch))


def test_ranks_that_are_in_time_all_go_on_and_leave_one_call_in_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(10):
        trial = Trial(seed, 3, n_calls=12, late=0.1)

        seen = trial.run(monkeypatch)

        check(trial, seen)
        assert not any(isinstance(x, Exception) for s in seen for x in s.ended)
        assert len(trial.store.keys) == 3  # one of each rank


def test_a_rank_that_comes_late_is_told_who_has_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(random.Random(0))
    monkeypatch.setattr(module, "time", scheduler)
    store, errors = Store(scheduler), {}

    def rank(number: int, late: float) -> None:
        scheduler.step(late)
        try:
            Peers(store, (4, 7), number, LIMIT_S).agree("all_reduce")
        except PeerError as error:
            errors[number] = error, scheduler.now - late

    scheduler.run([lambda: rank(0, 2 * LIMIT_S), lambda: rank(1, 0.0)])

    waited, late = errors[1][0], errors[0][0]
    assert "Rank 4 did not come within 4 s" in str(waited)
    assert waited.ranks == (4,)
    assert "Rank 4 did not come within 4 s" in str(late)
    assert "rank 7 waits no more" in str(late)
    assert late.ranks == (7,)
    assert errors[0][1] < 0.5


def test_ranks_that_ask_and_tell_at_one_place_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (0, 1):
        scheduler = Scheduler(random.Random(first))
        monkeypatch.setattr(module, "time", scheduler)
        store, errors = Store(scheduler), []

        def rank(number: int, tells: bool, store: Any = store, errors: list[Any] = errors) -> None:
            peers = Peers(store, (0, 1), number, LIMIT_S)
            try:
                _ = peers.exchange("a\nb") if tells else peers.agree("all_reduce", "x")
            except PeersDiffer as error:
                errors.append(str(error))

        scheduler.run([lambda f=first, r=rank: r(0, f == 0), lambda f=first, r=rank: r(1, f == 1)])

        assert len(errors) == 2
        assert all("all_reduce" in text and "tell the others" in text for text in errors)


def test_prepared_and_unprepared_ranks_agree_to_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(random.Random(0))
    monkeypatch.setattr(module, "time", scheduler)
    store, made = Store(scheduler), []
    scheduler.run(
        [
            lambda p=p, r=r: made.append(Peers(store, (0, 1), r, LIMIT_S).agree("c", p))
            for r, p in enumerate(("x+", "x"))
        ]
    )

    assert made == [PREPARE, PREPARE]


def test_what_is_recorded_while_another_thread_has_run_what_came_before_stays_pending(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group.__new__(Group)
    before, after = (Tape(), 0.0), (Tape(), 1.0)
    group.pending = before
    monkeypatch.setattr(groups, "run_pending", lambda *_: setattr(group, "pending", after))

    group.flush()

    assert group.pending is after
