"""Ranks of a grid that run programs of several groups, or of one: by a model of the store and of time.

Each rank has a random sequence of collectives of its row, its column and of all, and ends its tapes at random
places: at those of all, and at some of its own. In some sequences rows do what other rows do not. What ranks
do with a tape is what `torch_pjrt.run.together` does, with the real `Peers` and `Rounds`.
`TORCH_PJRT_TEST_ROUNDS` says how many interleavings to try of each kind.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Any

import pytest
from store_model import Killed, Scheduler, Store

from torch_pjrt_spmd.distributed import peers as peers_module
from torch_pjrt_spmd.distributed import rounds as rounds_module
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.grids import Refusals
from torch_pjrt_spmd.distributed.peers import ALL_READY, APART, PREPARE, SAME, Peers
from torch_pjrt_spmd.distributed.rounds import Rounds, Withdrawn

LIMIT_S, LONGEST_PAUSE_S = 60.0, 0.3
TRIALS = int(os.environ.get("TORCH_PJRT_TEST_ROUNDS", "15"))

Line = tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """One of a line of the grid: `text` is what its ranks call it; the test alone knows numbers and turns."""

    number: int
    turn: int
    line: Line
    text: str


class Part:
    """The part of a store that has keys of its own, as `PrefixStore`."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def __getattr__(self, name: str) -> Any:
        use = getattr(self._store, name)

        def with_prefix(keys: Any, *rest: Any) -> Any:
            if isinstance(keys, list):
                return use([f"{self._prefix}/{key}" for key in keys], *rest)
            return use(f"{self._prefix}/{keys}", *rest)

        return with_prefix


class Rank:
    """One rank: what it has run, as pairs of a collective and the launch that it was part of."""

    def __init__(self, trial: Trial, number: int) -> None:
        self.trial, self.number = trial, number
        store = trial.store
        self.groups: dict[Line, Peers] = {}
        for line in trial.lines:
            if number in line:
                found = Peers(Part(store, str(line)), line, line.index(number), LIMIT_S)
                found.knocks = True
                self.groups[line] = found
        self.rounds = Rounds(Part(store, "grid"), trial.ranks, number, LIMIT_S)
        self.prepared: set[str] = set()
        self.ran: list[tuple[Collective, Any]] = []
        self.error: BaseException | None = None
        self.why: list[str] = []

    def tape(self, tape: Sequence[Collective]) -> None:
        """Run a tape: by the grid where it has collectives of several groups."""
        if len({one.line for one in tape}) > 1:
            self.by_grid(tape)
        elif tape:
            self.by_group(tape)

    def by_grid(self, rest: Sequence[Collective]) -> None:
        while rest:
            if len({one.line for one in rest}) == 1:
                return self.by_group(rest)
            said = self.proposed(rest)
            if said == SAME:
                return self.run(rest, "grid")
            if said.startswith(APART):
                texts = [
                    x.split() for x in self.rounds.peers.exchange(" ".join(x.text for x in rest))
                ]
                n = sum(len(set(alike)) == 1 for alike in zip(*texts, strict=False))
                prefixes = [one[:n] for one in texts]
                n = n if len({tuple(p) for p in prefixes}) == 1 else 1
                if n > 1:
                    said = self.proposed(rest[:n])
                    if said == SAME:
                        self.run(rest[:n], "grid")
                        rest = rest[n:]
                        continue
                if said.startswith(APART) or said == SAME:
                    self.run(rest[:1], "grid")
                    rest = rest[1:]
                    continue
            for _, stretch in groupby(rest, lambda one: one.line):
                self.by_group(list(stretch))
            return

    def proposed(self, rest: Sequence[Collective]) -> str:
        """What the ranks of the grid do with it: `SAME`, `APART`, or "" where they do not come to it."""
        digest = digest_of(rest)
        proposal = f"{digest}{ALL_READY if digest in self.prepared else ''}"
        try:
            said = self.rounds.propose(rest[0].text, proposal, list(self.groups.values()))
            if said == PREPARE:
                self.trial.scheduler.step(self.trial.chance.random())
                self.prepared.add(digest)
                said = self.rounds.peers.agree(f"run {digest}", f"compiled{ALL_READY}")
        except Withdrawn as error:
            self.why.append(error.why)
            return ""
        return said

    def by_group(self, rest: Sequence[Collective]) -> None:
        group = self.groups[rest[0].line]
        while rest:
            digest = digest_of(rest)
            ready = ALL_READY if digest in self.prepared else ""
            said = group.agree(rest[0].text, f"{digest}{ready}")
            if said == PREPARE:
                self.prepared.add(digest)
                said = group.agree(f"run {digest}", f"compiled{ALL_READY}")
            n = len(rest) if said == SAME else 1
            self.run(rest[:n], rest[0].line)
            rest = rest[n:]

    def run(self, some: Sequence[Collective], by: Any) -> None:
        """Launch a program: of the grid, or of a group. Its number is that of the agreement behind it."""
        peers = self.rounds.peers if by == "grid" else self.groups[by]
        number = self.rounds.decided if by == "grid" else peers._calls
        self.ran += [(one, (by, number, digest_of(some))) for one in some]


def digest_of(some: Sequence[Collective]) -> str:
    return sha256(" ".join(one.text for one in some).encode()).hexdigest()[:12]


@dataclass
class Trial:
    """One interleaving.

    unlike   how often a collective is of one line alone, and not of all that are parallel to it.
    own_cuts how often a rank ends a tape where others do not.
    faults   how often a rank is killed or interrupted in a tape.
    late     how often a rank comes when others are about to give it up.
    unknown  how often a rank waits for another one's earlier tape in a way that nobody sees.
    """

    seed: int
    shape: tuple[int, int]
    n: int = 10
    unlike: float = 0.0
    own_cuts: float = 0.0
    faults: float = 0.0
    late: float = 0.0
    unknown: float = 0.0
    done: dict[int, int] = field(default_factory=dict)
    programs: dict[int, list[list[Collective]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.scheduler = Scheduler(self.chance)
        self.store = Store(self.scheduler)
        rows, columns = self.shape
        self.ranks = tuple(range(rows * columns))
        self.families: list[list[Line]] = [
            [tuple(range(i * columns, (i + 1) * columns)) for i in range(rows)],
            [tuple(range(j, rows * columns, columns)) for j in range(columns)],
            [self.ranks],
        ]
        self.lines = [line for family in self.families for line in family]

    def collectives(self) -> Iterator[Collective]:
        """In an order in which all could be run one after the other."""
        number = 0
        for i in range(self.n):
            family = self.chance.choice([*self.families[:2], *self.families])
            is_unlike = self.chance.random() < self.unlike
            for line in [self.chance.choice(family)] if is_unlike else family:
                number += 1
                yield Collective(number, i, line, f"{i}of{self.families.index(family)}")

    def ends(self) -> list[int]:
        """The turns behind which all ranks end their tapes."""
        return [i for i in range(self.n) if self.chance.random() < 0.3]

    def tapes(self, sequence: Sequence[Collective]) -> list[list[Collective]]:
        """Those of a rank, of what it does between two places at which all end theirs."""
        tapes: list[list[Collective]] = [[]]
        for one in sequence:
            tapes[-1].append(one)
            if self.chance.random() < self.own_cuts:
                tapes.append([])
        return tapes

    def run(self, monkeypatch: pytest.MonkeyPatch) -> list[Rank]:
        for module in (peers_module, rounds_module):
            monkeypatch.setattr(module, "time", self.scheduler)
            monkeypatch.setattr(module, "_LONGEST_PAUSE", LONGEST_PAUSE_S)
        every = list(self.collectives())
        ends = [-1, *self.ends(), self.n]
        ranks = [Rank(self, number) for number in self.ranks]
        for rank in ranks:
            sequence = [one for one in every if rank.number in one.line]
            self.programs[rank.number] = [
                tape
                for begin, end in pairwise(ends)
                for tape in self.tapes([one for one in sequence if begin < one.turn <= end])
                if tape
            ]
        self.scheduler.run([lambda rank=rank: self._program(rank) for rank in ranks])
        self.every = every
        return ranks

    def _program(self, rank: Rank) -> None:
        try:
            for tape in self.programs[rank.number]:
                if self.chance.random() < self.unknown:
                    self._wait_unseen(self.chance.choice(self.ranks), tape[0].turn)
                self._one_tape(rank, tape)
                self.done[rank.number] = tape[-1].turn
        except (PeerError, Killed, KeyboardInterrupt) as error:
            rank.error = error

    def _wait_unseen(self, other: int, turn: int) -> None:
        """Until another rank has run its last tape that ends before a turn."""
        before = [t[-1].turn for t in self.programs[other] if t[-1].turn < turn]
        while before and self.done.get(other, -1) < before[-1]:
            self.scheduler.sleep(0.3)

    def _one_tape(self, rank: Rank, tape: Sequence[Collective]) -> None:
        self.scheduler.step(self.chance.choice((0.0, 0.0, 0.1, 2 * self.chance.random())))
        if self.chance.random() < self.late:
            self.scheduler.step(LIMIT_S / 2 + self.chance.uniform(-0.3, 0.1))
        if self.chance.random() < self.faults:
            kind = self.chance.choice((Killed, KeyboardInterrupt))
            self.scheduler.raising[rank.number] = self.chance.randrange(12), kind()
        rank.tape(tape)


def check(trial: Trial, ranks: list[Rank]) -> None:
    """Ranks that ran a collective ran it in the same launch, as all of that launch; each in its order."""
    launches: defaultdict[int, set[Any]] = defaultdict(set)
    texts: defaultdict[Any, set[tuple[str, ...]]] = defaultdict(set)
    for rank in ranks:
        own = [one for one in trial.every if rank.number in one.line]
        assert [one for one, _ in rank.ran] == own[: len(rank.ran)], (trial.seed, rank.number)
        of: defaultdict[Any, list[str]] = defaultdict(list)
        for one, launch in rank.ran:
            launches[one.number].add(launch)
            of[launch].append(one.text)
        for launch, said in of.items():
            texts[launch].add(tuple(said))
    assert all(len(of) == 1 for of in launches.values()), trial.seed
    assert all(len(of) == 1 for of in texts.values()), trial.seed


def check_all_done(trial: Trial, ranks: list[Rank]) -> None:
    check(trial, ranks)
    for rank in ranks:
        assert rank.error is None, (trial.seed, rank.number, rank.error)
        assert len(rank.ran) == sum(rank.number in one.line for one in trial.every), trial.seed


KINDS: dict[str, dict[str, Any]] = {
    "alike": {},
    "that read at places of their own": {"own_cuts": 0.2},
    "whose rows do what others do not": {"unlike": 0.3},
    "of both kinds": {"unlike": 0.4, "own_cuts": 0.3},
}


@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_of_a_grid_run_all_and_never_wait_in_vain(
    kind: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(TRIALS):
        trial = Trial(seed, shape, **KINDS[kind])

        ranks = trial.run(monkeypatch)

        check_all_done(trial, ranks)
        for rank in ranks:
            seen["by the grid"] += sum(launch[0] == "grid" for _, launch in rank.ran)
            seen["by groups"] += sum(launch[0] != "grid" for _, launch in rank.ran)
            seen["withdrawn"] += len(rank.why)
            assert not any("has waited for" in why for why in rank.why), (seed, rank.why)
    assert seen["by the grid"] > TRIALS / 4
    assert seen["by groups"] > TRIALS
    assert (seen["withdrawn"] == 0) is (kind == "alike")


def test_ranks_that_wait_in_ways_that_nobody_sees_all_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(TRIALS):
        trial = Trial(seed, (2, 2), unlike=0.3, own_cuts=0.2, unknown=0.5)

        check_all_done(trial, trial.run(monkeypatch))


class Lines(Trial):
    """On two by two ranks: the first row, the first column, the others; each rank has one tape."""

    def collectives(self) -> Iterator[Collective]:
        (first, second), (left, right), _ = self.families
        for i, line in enumerate((first, left, second, right)):
            yield Collective(i, i, line, f"{i}")

    def ends(self) -> list[int]:
        return []


class OneIsLate(Lines):
    """The last rank waits for the first one's tape, in a way that nobody sees."""

    def _one_tape(self, rank: Rank, tape: Sequence[Collective]) -> None:
        if rank.number == 3:
            self._wait_unseen(0, 2)
        rank.tape(tape)


class OneStaysAway(Lines):
    """The last rank does nothing. `ended`: when the others' tapes have, by the clock."""

    def _program(self, rank: Rank) -> None:
        self.ended = [*getattr(self, "ended", []), 0.0]
        if rank.number < 3:
            super()._program(rank)
            self.ended.append(self.scheduler.now)


def test_where_one_waits_for_another_unseen_they_go_on_by_groups_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(5):
        trial = OneIsLate(seed, (2, 2))

        ranks = trial.run(monkeypatch)

        check_all_done(trial, ranks)
        assert sum("has waited for rank" in why for rank in ranks for why in rank.why) == 3
        assert LIMIT_S / 2 < trial.scheduler.now < LIMIT_S


def test_who_stays_away_is_named_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(5):
        trial = OneStaysAway(seed, (2, 2))

        ranks = trial.run(monkeypatch)

        check(trial, ranks)
        assert [type(rank.error) for rank in ranks] == [
            type(None),
            PeerError,
            PeerError,
            type(None),
        ]
        assert all("Rank 3 did not come within" in str(ranks[r].error) for r in (1, 2))
        assert len(ranks[0].ran) == 2
        assert max(trial.ended) < LIMIT_S + 2


def test_ranks_that_come_when_others_give_them_up_do_as_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = together = 0
    for seed in range(4 * TRIALS):
        trial = Trial(seed, (2, 2), n=3, late=0.5)

        ranks = trial.run(monkeypatch)

        check(trial, ranks)
        late += sum("has waited for" in why for rank in ranks for why in rank.why)
        together += sum(launch[0] == "grid" for rank in ranks for _, launch in rank.ran)
    assert min(late, together) > TRIALS


class DecidedMeanwhile(Store):
    """The round is decided in the moment in which a rank withdraws."""

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        self.keys.setdefault(key, SAME.encode())
        return super().compare_set(key, expected, value)


def test_who_withdraws_too_late_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(random.Random(0))
    monkeypatch.setattr(rounds_module, "time", scheduler)
    store, said = DecidedMeanwhile(scheduler), []
    rounds, group = Rounds(store, (0, 1), 1, LIMIT_S), Peers(store, (0, 1), 1, LIMIT_S)

    scheduler.run([lambda: said.append(rounds.propose("a collective", "x+", [group]))])

    assert said == [SAME]
    assert scheduler.now > LIMIT_S / 2


def test_killed_and_interrupted_ranks_leave_nobody_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: Counter[str] = Counter()
    for seed in range(TRIALS):
        trial = Trial(seed, (2, 2), unlike=0.1, own_cuts=0.1, faults=0.1)

        ranks = trial.run(monkeypatch)

        check(trial, ranks)
        ended.update(type(rank.error).__name__ for rank in ranks)
    assert ended["PeerError"] > TRIALS / 10
    assert ended["Killed"] > TRIALS / 10


def test_tapes_that_are_refused_are_tried_less_and_less_until_they_are_run() -> None:
    known = Refusals()
    known.note("first", "beginning")
    tried = []
    for i in range(100):
        if not known.leaves_out("beginning"):
            tried.append(i)
            known.add("first")

    assert tried == [0, 1, 2, 4, 8, 16, 32, 64]
    assert not known.leaves_out("another beginning")
    known.take_back("first")
    assert not any(known.leaves_out("beginning") for _ in range(5))
