"""Whether the processes of a group are about to do the same: asked before each collective is launched.

Each says in one line what it is about to do. The first process compares and tells the others. Where they
differ, all raise, with what each was about to do; where one does not come, the others raise within a time
limit. A collective that only some processes launch would hang, or end in the middle of a write.

What is decided is one key of the store, which is written once: the first process's answer, or that somebody
has given up. So who has waited in vain cannot be taken later for one that still waits, and who comes later
is told.

Who waits for more than a moment may say so in the store as well (`knocks`): a process that is about to wait
for others, this one among them, at another place (`rounds.py`) sees that they would wait for each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from torch_pjrt_spmd.distributed import findings
from torch_pjrt_spmd.distributed.board import PAUSE_SECONDS
from torch_pjrt_spmd.distributed.errors import PeerError, PeersDiffer
from torch_pjrt_spmd.distributed.health import health
from torch_pjrt_spmd.distributed.store_keeper import keeper

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.health import Health

# What processes are told that would do the same: do it; do what comes first of it, alone; prepare it.
SAME, APART, PREPARE = "same", "apart", "prepare"
# At the end of a proposal: this process is prepared for it.
ALL_READY = "+"
# What is decided where a process does not wait any more: with its number, for whom it waited, and why.
_GAVE_UP = "gave up\t"
# Beside the calls of processes: one waits for the others.
_KNOCK = "knock"
# How begins what a process has the others know that decides nothing, and in words what it does then.
_TELL, _TELLING = "tell\n", "tell the others what it is about to do"
# How long to wait before the store is asked again, in seconds.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 0.02
# How often it is looked whether the others live, in seconds.
_LOOK_SECONDS = 0.4


def lost_error(lost: Sequence[findings.Finding], rank: int, call: str) -> PeerError:
    """What a rank raises that waits for others of which some are gone; the first cause is named first."""
    first, *further = lost
    return PeerError(
        f"{first.text[0].upper()}{first.text[1:]}",
        ranks=[one.rank for one in lost],
        saw="\n    ".join([f"rank {rank} was about to {call}", *(one.text for one in further)]),
    )


def answer(said: Sequence[str]) -> str:
    """What is to be done where this is what processes say; their calls line by line, where these differ."""
    proposals, _, calls = zip(*[one.partition("\t") for one in map(_one_line, said)], strict=True)
    if len(set(calls)) > 1:
        return "\n".join(calls)
    if len({proposal.removesuffix(ALL_READY) for proposal in proposals}) > 1:
        names = "\t".join(proposal.removesuffix(ALL_READY) for proposal in proposals)
        return f"{APART} {sha256(names.encode()).hexdigest()[:16]}"
    return SAME if all(p.endswith(ALL_READY) or not p for p in proposals) else PREPARE


def _told(said: Sequence[str]) -> str:
    """All that processes tell each other; their calls line by line, where some do something else."""
    if all(one.startswith(_TELL) for one in said):
        return json.dumps([one.removeprefix(_TELL) for one in said])
    return "\n".join(_one_line(one).partition("\t")[2] for one in said)


def _one_line(said: str) -> str:
    """What a process proposes and is about to do."""
    return f"\t{_TELLING}" if said.startswith(_TELL) else said


class Peers:
    """The processes of a group, from the view of one.

    store    by which they speak; of this group alone.
    ranks    of each its number in the run.
    rank     which one this is, in the group.
    timeout  how long it waits for the others, in seconds.
    spent    so many of these seconds are over when it next waits.
    knocks   whether it says that it waits.
    """

    def __init__(self, store: Any, ranks: Sequence[int], rank: int, timeout: float) -> None:
        self._store = store
        self.ranks = tuple(ranks)
        self.rank = rank
        self.timeout = timeout
        self.spent = 0.0
        self.knocks = False
        self._calls = 0
        self._kept: list[int] = []  # the calls of which the store has what this one wrote
        self._knocked: set[int] = set()

    def begin_at(self, call: int) -> None:
        """Have the next call be that of this number: on all processes, which have agreed on it."""
        self._calls = call - 1

    def is_awaited(self) -> bool:
        """Whether others wait for this process's next call. Raises `PeerError` where the store is gone."""
        return self._has([f"{self._calls + 1}/{_KNOCK}"], "look who waits")

    def agree(self, call: str, proposal: str = "") -> str:
        """Return once all processes have said what they are about to do, the same on each.

        call      what this one is about to do, in one line.
        proposal  what it would do at once beside that, if all would; none, where it is empty.

        `SAME`: all propose the same, and are ready for it, or none proposes anything; `PREPARE`: not all are
        ready; `APART` and a name for what they propose: different things. Raises `PeersDiffer` where another
        is about to do something else, `PeerError` where one does not come, on all that do.
        """
        if len(self.ranks) == 1:
            return answer([f"{proposal}\t{call}"])
        decided = self._decided(call, f"{proposal}\t{call}", answer)
        if "\n" in decided:
            raise self._differ(decided.split("\n"))
        if decided != PREPARE and (own := health()) is not None:
            own.entering(call, self.ranks)
        return decided

    def exchange(self, text: str) -> list[str]:
        """What each process says, in the order of ranks. All must call it at the same place; raises as
        `agree` does, where one does not come.
        """
        if len(self.ranks) == 1:
            return [text]
        answer = self._decided(_TELLING, _TELL + text, _told)
        if "\n" in answer:
            raise self._differ(answer.split("\n"))
        return json.loads(answer)

    def _decided(self, call: str, mine: str, answer_of: Callable[[Sequence[str]], str]) -> str:
        """What the first process makes of what all say; `PeerError` where one of them has given up."""
        self._calls += 1
        n, store = self._calls, self._store
        self._kept.append(n)
        others = [f"{n}/{r}" for r in range(1, len(self.ranks))]
        try:
            if self.rank == 0:
                is_open = self._wait(others, f"{n}", call)
            else:
                store.set(f"{n}/{self.rank}", mine)
                self._wait([], f"{n}", call)
                is_open = False
        except BaseException as error:
            decided = self._give_up(n, error)
            if decided is None or not isinstance(error, PeerError):
                raise
        else:
            if is_open:
                said = [mine, *[value.decode() for value in store.multi_get(others)]]
                decided = store.compare_set(f"{n}", "", answer_of(said)).decode()
            else:
                decided = store.get(f"{n}").decode()
        if decided.startswith(_GAVE_UP):
            raise self._given_up(decided, call)
        self._forget()
        return decided

    def _give_up(self, n: int, error: BaseException) -> str | None:
        """Have nobody wait for this process any more. What was decided before that, if something was."""
        late = list(error.ranks) if isinstance(error, PeerError) else []
        why = str(error).partition("\n")[0]
        if not isinstance(error, PeerError):
            why = f"Rank {self.ranks[self.rank]} was interrupted: {type(error).__name__} {why}".rstrip()
        mine = _GAVE_UP + json.dumps([self.ranks[self.rank], late, why])
        try:
            decided = self._store.compare_set(f"{n}", "", mine).decode()
        except RuntimeError:  # the store is gone
            return None
        return None if decided == mine else decided

    def _wait(self, keys: list[str], end: str, call: str) -> bool:
        """Return once the store has the keys, or `end`: whether it is the keys, if there are any.

        The store's own waiting would log each second.
        """
        awaited, own = keys or [end], health()
        with own.waiting(call, self.ranks) if own is not None else nullcontext():
            pause, begun = _SHORTEST_PAUSE, time.monotonic()
            asked = looked = begun
            begun -= self.spent
            self.spent = 0.0
            while not self._has(awaited, call):
                if keys and self._has([end], call):
                    return False
                now = time.monotonic()
                if (
                    now - asked > PAUSE_SECONDS
                ):  # this process was stopped: others have had no time to post
                    begun = looked = now
                elif own is not None and now - looked > _LOOK_SECONDS:
                    looked = now
                    begun = now if self._see_to(own, awaited, call) else begun
                if now - begun > self.timeout:
                    raise self._missing(awaited, call)
                if self.knocks and pause == _LONGEST_PAUSE:
                    self._knock(int(end), call)
                asked = now
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return bool(keys)

    def _knock(self, n: int, call: str) -> None:
        """Say that this process waits, at its call `n`."""
        if n in self._knocked:
            return
        self._knocked.add(n)
        try:
            self._store.set(f"{n}/{_KNOCK}", "")
        except RuntimeError as error:
            raise self.no_store(error, call) from error

    def lost(self, call: str, error: Exception) -> PeerError:
        """What is raised where a collective has failed: it says which rank is gone, if that can be known."""
        said, own = str(error).partition("\n")[0], health()
        within = (
            0.5 if "imed out" in said else 3.0
        )  # after a time limit, it has been looked for long
        if own is not None and (lost := own.find_lost(self.ranks, within)):
            return lost_error(lost, own.rank, f"{call}, which failed: {said}")
        if own is not None and own.store_fault is not None:
            return self.no_store(RuntimeError(own.store_fault), call)
        others = [rank for rank in self.ranks if rank != self.ranks[self.rank]]
        late = findings.late(own.board.seen, others) if own is not None else []
        return PeerError(
            f"What ranks do together failed: {call}.",
            ranks=[one.rank for one in late],
            saw="\n    ".join([said, *(one.text for one in late)]),
            hint="a rank is gone, or did not call it within TORCH_PJRT_PEER_TIMEOUT seconds",
        )

    def _see_to(self, own: Health, keys: list[str], call: str) -> bool:
        """Raise where a process of the group is gone; whether one that is waited for compiles."""
        lost = own.lost(self.ranks)
        if lost and self._absent(keys):
            raise lost_error(lost, own.rank, call)
        return any(findings.is_excused(own.board.seen, rank) for rank in self._absent(keys))

    def _has(self, keys: list[str], call: str) -> bool:
        try:
            return self._store.check(keys)
        except RuntimeError as error:
            raise self.no_store(error, call) from error

    def _absent(self, keys: list[str]) -> list[int]:
        """The ranks, in the run, that have not put their keys: `n/rank`, or the first one's `n`."""
        missing = [key for key in keys if not self._store.check([key])]
        return [self.ranks[int(key.partition("/")[2] or 0)] for key in missing]

    def no_store(self, error: RuntimeError, call: str) -> PeerError:
        """What is raised where the store is gone."""
        rank, own = self.ranks[self.rank], health()
        known = own.board.seen.get(0) if own is not None else None
        who = keeper(own.store) if own is not None else "rank 0"
        is_rank = who == "rank 0"
        if known is not None and is_rank:
            who = f"{known.post.name}. {findings.where(known.post)}"
        return PeerError(
            f"The run's store is gone, with the process that keeps it: {who}",
            ranks=[0] if is_rank else [],
            saw=str(error).partition("\n")[0],
            hint=f"rank {rank} was about to {call}; what the other process printed last says why",
        )

    def _missing(self, keys: list[str], call: str) -> PeerError:
        absent, own = self._absent(keys), health()
        late = findings.late(own.board.seen, absent) if own is not None else []
        lines = [f"rank {self.ranks[self.rank]} is about to {call}", *(one.text for one in late)]
        names = " and ".join(str(rank) for rank in absent)
        return PeerError(
            f"Rank {names} did not come within {self.timeout:g} s.",
            ranks=[one.rank for one in late] or absent,
            saw="\n    ".join(lines),
            expected="that all ranks of the group call the same collectives",
            hint="TORCH_PJRT_PEER_TIMEOUT=seconds, or the timeout of the process group, has it wait longer",
        )

    def _given_up(self, decided: str, call: str) -> PeerError:
        """Another process has waited, and no longer does."""
        who, late, why = json.loads(decided.removeprefix(_GAVE_UP))
        mine = self.ranks[self.rank]
        return PeerError(
            why,
            ranks=[rank for rank in late if rank != mine] or [who],
            saw=f"rank {who} waits no more\n    rank {mine} was about to {call}",
            hint="it has run on no rank; ranks that all call it again can go on",
        )

    def _differ(self, said: Sequence[str]) -> PeersDiffer:
        lines = [f"rank {rank}: {call}" for rank, call in zip(self.ranks, said, strict=True)]
        return PeersDiffer(
            "The ranks of a group are about to do different things.",
            saw="\n    ".join(lines),
            expected="the same collective on tensors of one shape and dtype on each rank",
        )

    def _forget(self) -> None:
        """Have the store forget earlier calls: all processes have come to the last one."""
        *earlier, last = self._kept
        for n in earlier:
            self._store.delete_key(f"{n}" if self.rank == 0 else f"{n}/{self.rank}")
            if n in self._knocked:
                self._knocked.remove(n)
                self._store.delete_key(f"{n}/{_KNOCK}")
        self._kept = [last]
