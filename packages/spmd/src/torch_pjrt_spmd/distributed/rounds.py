"""Whether all ranks of a grid are about to run the same program: asked of many, of whom some may never come.

A program with the collectives of several groups needs all ranks of the grid that these groups are lines of.
Each rank of a group comes to its group's calls (`peers.py`), or the program is wrong; a rank of the grid may
do without the grid for ever: it uses its row alone. So here nobody has to come. A rank proposes its program
in a *round*, and the round is decided once: that all are there, with what the first rank makes of what they
propose, or that one of them has withdrawn. Then each runs its program by groups, as if there were no grid.

Why all do the same. What is decided is one key of the store, which is written once, by compare-and-set.
That all are there is written only where each rank has proposed in this round, and none has withdrawn, since
withdrawing writes the same key. Who has proposed waits until the round is decided, and does nothing else
meanwhile. So at the moment in which it is decided that all are there each rank of the grid stands in this
round, behind the same calls of each of its groups, and does what is decided: launch, compile and ask again,
or compare. For the last two, ranks speak by calls whose numbers follow from the round's.

Why nobody waits for ever. Ranks wait for each other in calls of groups, in rounds, and in ways unknown here.
A rank in a round withdraws
- where another one of its group has come to the group's next call, and waits there (`Peers.knocks`). That
  one would not propose before the call has ended, and the call not end before the round does. Whoever in a
  call waits, through others in calls, for one in a round: at the end of the chain is such a pair. All of a
  group are behind the same number of its calls, so "next" means the same to both, and ranks that are only
  late do not make others withdraw;
- where another waits for it elsewhere for some seconds, by its post on the board, or is gone;
- in any case after half the time limit, in which nobody compiles. What is over of the limit is over for the
  group's next call, too (`Peers.spent`), so who waits in vain is told within the limit.
The second and third are for ways unknown here; calls and rounds alone come to the first. For a rank proposes
with collectives of several groups, to the least grid that these are lines of. So along each axis of the grid
it has a group whose next call it would come to without a grid. If some ranks never propose, one of them lies
along an axis from one that has: it is in a group with that one, which is to come to a call of it. There it
waits and knocks, or it waits for one in another call, and so on to one that knocks.
Withdrawing waits for nobody. Then the rank is where it would be without a grid, where groups' calls end
within the limit.

Why ranks find each other. Rounds have numbers, and each rank knows the first that it has not seen decided.
A round that was decided before a rank came to it is over: it proposes in the next one. So two that wait are
in the same round, whatever each has done before: those of a lower number are decided. Who falls back and one
that proposes anew do not wait for each other: the one that falls back comes to a call of a group, and knocks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from torch_pjrt_spmd.distributed import findings, peers
from torch_pjrt_spmd.distributed.board import PAUSE_SECONDS, WAITING, Post
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.health import Health, health
from torch_pjrt_spmd.distributed.peers import Peers

# What is decided where they do not do anything together: why, and for whom was waited in vain.
_WITHDRAWN = "withdrawn\t"
# Calls of ranks that are all there, between the first of a round and the first of the next.
_CALLS_OF_A_ROUND = 16
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 0.02
# How often it is looked who waits for this rank, in seconds: in calls of groups, and on the board.
_LOOK_SECONDS, _LOOK_AT_POSTS_SECONDS = 0.1, 0.4
# After how long somebody's waiting elsewhere counts, in seconds, and for how long that one has waited.
_LONG, _OTHERS_LONG = 3.0, 1.5


class Withdrawn(Exception):
    """The round has been decided: its ranks do not all run the same program now.

    why     in words.
    late    for whom was waited in vain, by their numbers in the run.
    """

    def __init__(self, why: str, late: Sequence[int] = ()) -> None:
        super().__init__(why)
        self.why, self.late = why, tuple(late)


class Rounds:
    """The rounds of a grid, from the view of one of its ranks.

    store    by which they speak; of this grid alone.
    ranks    numbers in the run; rank: which of these this one is.
    peers    for what they tell each other once all are there.
    withdrawn, decided   how many rounds that this rank took part in ended so.
    why      the last one ended in vain, in words.
    """

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, timeout: float) -> None:
        self._store = store
        self.ranks, self.rank = tuple(ranks), rank
        self.peers = Peers(store, ranks, rank, timeout)
        self.withdrawn = self.decided = 0
        self.why = ""
        self._round = 1
        self._kept: list[int] = []  # rounds that this rank has proposed in
        self._first_kept = 1  # of which the store still has what was decided

    def propose(
        self, call: str, proposal: str, groups: Sequence[Peers], *, waits_long: bool = False
    ) -> str:
        """What all ranks are to do, as `Peers.agree` says it, once all propose something here.

        call      of the first collective, behind who they are and a colon; proposal: the program.
        groups    the calls of this rank's groups that it takes part in by groups, if not here.
        waits_long    to the end of the time limit, for one that cannot go on by groups.

        Raises `Withdrawn` where they are not to do anything together: the same on all that have proposed.
        """
        mine = f"{proposal}\t{call}"
        self.peers.timeout = min(group.timeout for group in groups)
        while True:
            number = self._round
            self._kept.append(number)
            try:
                decided = self._decided(number, mine, call, groups, waits_long)
            except PeerError:
                raise
            except RuntimeError as error:
                raise self.peers.no_store(error, call) from error
            self._round += 1
            if decided is None:  # before this rank has come
                continue
            if decided.startswith(_WITHDRAWN):
                self.withdrawn += 1
                self.why, late = json.loads(decided.removeprefix(_WITHDRAWN))
                raise Withdrawn(self.why, late)
            self.decided += 1
            self._forget(number)
            self.peers.begin_at(_CALLS_OF_A_ROUND * number)
            if decided != peers.PREPARE and (own := health()) is not None:
                own.entering(call, self.ranks)
            return decided

    def _decided(
        self, number: int, mine: str, call: str, groups: Sequence[Peers], waits_long: bool
    ) -> str | None:
        """What is decided in a round that this rank takes part in; None where it was over before."""
        store, end = self._store, f"r{number}"
        if self.rank:
            store.set(f"{end}/{self.rank}", mine)
        others = [f"{end}/{r}" for r in range(1, len(self.ranks))]
        waiting = _Waiting(self, call, groups, waits_long)
        try:
            own = health()
            with own.waiting(call, self.ranks) if own is not None else nullcontext():
                pause = _SHORTEST_PAUSE
                while True:
                    if self.rank == 0 and store.check(others):
                        said = [mine, *[one.decode() for one in store.multi_get(others)]]
                        decided = store.compare_set(end, "", self._answer(said)).decode()
                        break
                    if store.check([end]):
                        decided = store.get(end).decode()
                        break
                    if why := waiting.objection(others):
                        decided = self._withdraw(end, why, waiting.late)
                        break
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        except BaseException as error:
            if not isinstance(error, RuntimeError):  # an interrupt
                self._withdraw(end, f"was interrupted: {type(error).__name__}")
                self._round += 1
            raise
        if decided.startswith(_WITHDRAWN):
            if pause == _SHORTEST_PAUSE:
                return None
            for group in groups:
                group.spent = waiting.seconds
        return decided

    def _answer(self, said: Sequence[str]) -> str:
        """What is decided where this is what all ranks propose."""
        answer = peers.answer(said)
        if "\n" not in answer:
            return answer
        lines = [
            f"rank {r}: {call}" for r, call in zip(self.ranks, answer.split("\n"), strict=True)
        ]
        return _WITHDRAWN + json.dumps([f"they differ: {'; '.join(lines)}", []])

    def _withdraw(self, end: str, why: str, late: Sequence[int] = ()) -> str:
        """Have nobody wait for this rank any more; what is decided."""
        mine = _WITHDRAWN + json.dumps([f"rank {self.ranks[self.rank]} {why}", late])
        return self._store.compare_set(end, "", mine).decode()

    def absent(self, others: Sequence[str]) -> list[int]:
        """The ranks, in the run, that have not proposed; to others than the first it is the first one."""
        if self.rank:
            return [self.ranks[0]]
        keys = [key for key in others if not self._store.check([key])]
        return [self.ranks[int(key.rpartition("/")[2])] for key in keys]

    def _forget(self, number: int) -> None:
        """Have the store forget earlier rounds: all ranks have come to this one."""
        if self.rank == 0:
            for n in range(self._first_kept, number):
                self._store.delete_key(f"r{n}")
            self._first_kept = number
        else:
            for n in self._kept[:-1]:
                self._store.delete_key(f"r{n}/{self.rank}")
        self._kept = self._kept[-1:]


class _Waiting:
    """A rank that waits in a round: whether it is to go on. `late`: for whom it has waited to the end."""

    def __init__(
        self, rounds: Rounds, call: str, groups: Sequence[Peers], waits_long: bool
    ) -> None:
        self._rounds, self._call, self._groups = rounds, call, groups
        limit = rounds.peers.timeout
        self._limit = limit if waits_long else limit / 2
        self.late: list[int] = []
        self._begun = self._asked = self._looked = self._looked_at_posts = time.monotonic()

    @property
    def seconds(self) -> float:
        """For how long it has waited, of the time limit."""
        return time.monotonic() - self._begun

    def objection(self, others: Sequence[str]) -> str:
        """Why this rank is to withdraw; "" where it is to wait. `others`: the keys of what they propose."""
        now = time.monotonic()
        if now - self._asked > PAUSE_SECONDS:  # this process was stopped
            self._begun = self._looked_at_posts = now
        self._asked = now
        if now - self._looked > _LOOK_SECONDS:
            self._looked = now
            if any(group.is_awaited() for group in self._groups):
                return "is waited for, in the next collective of one of its groups"
        own = health()
        if own is not None and now - self._looked_at_posts > _LOOK_AT_POSTS_SECONDS:
            self._looked_at_posts = now
            if why := self._on_the_board(own, others):
                return why
        if self.seconds <= self._limit:
            return ""
        self.late = self._rounds.absent(others)
        names = " and ".join(map(str, self.late))
        return f"has waited for rank {names} for {self._limit:g} s"

    def _on_the_board(self, own: Health, others: Sequence[str]) -> str:
        rounds = self._rounds
        if lost := own.lost(rounds.ranks):
            return f"waits no more: {lost[0].text}"
        if any(findings.is_excused(own.board.seen, rank) for rank in rounds.absent(others)):
            self._begun = time.monotonic()
            return ""
        if self.seconds < _LONG:
            return ""
        mine = rounds.ranks[rounds.rank]
        for one in list(own.board.seen.values()):
            post = one.post
            if (
                post.phase == WAITING
                and post.rank != mine
                and mine in post.ranks
                and post.since_s > _OTHERS_LONG
                and not self._is_of_a_round(post)
            ):
                return f"is waited for, by {post.name}, for {post.doing}"
        return ""

    def _is_of_a_round(self, post: Post) -> bool:
        """Whether a rank that waits does so in a round of this grid."""
        who = self._call.partition(":")[0]
        return tuple(post.ranks) == self._rounds.ranks and post.doing.startswith(f"{who}:")
