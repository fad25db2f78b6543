"""Programs with the collectives of several groups: run by all ranks of the grid of which these are lines.

A tape takes collectives of another group, too, where both are lines of one grid (`lines.py`) and all its
other rows and columns are groups as well. Before it runs, all ranks of the grid are asked (`rounds.py`).
Where they are not all about to run the same, it runs as it would without a grid: as several tapes, of one
group each.

A tape for which the ranks did not come is known by how it begins. The next one that begins so ends at once
where the group changes, and so do those after it, up to the next read or step. Now and then it is tried
again: at every other, every fourth one and so on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from torch._C._distributed_c10d import PrefixStore

from torch_pjrt.extend import Joint, JointAnswer, Tape, joined_run
from torch_pjrt.plugin import Node
from torch_pjrt_spmd.distributed.errors import PeerError
from torch_pjrt_spmd.distributed.joining import chip_of, store_of_run
from torch_pjrt_spmd.distributed.lines import Ground, Line, ground_of, steps_of
from torch_pjrt_spmd.distributed.rounds import Rounds, Withdrawn
from torch_pjrt_spmd.distributed.settings import peer_timeout
from torch_pjrt_spmd.distributed.together import Ranks

if TYPE_CHECKING:
    from torch_pjrt_spmd.distributed.peers import Peers

# The most beginnings of tapes that are known, and that are left out between two attempts.
_MOST_BEGINNINGS, _MOST_LEFT_OUT = 4096, 256
# For how long others' groups are waited for that are not known yet, in seconds.
_IN_THE_MAKING_SECONDS, _PAUSE_SECONDS = 1.0, 0.02


class Lining(Protocol):
    """A group, as far as grids are concerned."""

    name: str
    line: Line
    joint: Ranks
    peers: Peers


class Grid(Ranks):
    """All ranks of a grid, for tapes with the collectives of these groups through this process's rank.

    groups  by their lines.
    """

    def __init__(self, ground: Ground, groups: Sequence[Lining], rounds: Rounds) -> None:
        chips = [chip_of(rank) for rank in ground.ranks]
        name = f"grid {ground} at {[chip.id for chip in chips]}"
        Joint.__init__(self, name, chips, ground.axes)
        self._begin(f"grid of {len(chips)} ranks", rounds.peers)
        self.groups = {group.line: group for group in groups}
        self.ground = ground
        self._rounds = rounds

    def propose(self, digest: str, is_ready: bool, first: Node) -> JointAnswer:
        """See `Joint`."""
        try:
            answer = self._proposed_by_all(digest, is_ready, first)
        except Withdrawn:
            refusals.add(first.signature)
            return JointAnswer.SPLIT
        refusals.take_back(first.signature)
        return answer

    def _proposed_by_all(
        self, digest: str, is_ready: bool, first: Node, *, waits_long: bool = False
    ) -> JointAnswer:
        self._doing = self._call(first)
        proposal = self._proposal(digest, is_ready)
        groups = [group.peers for group in self.groups.values()]
        try:
            said = self._rounds.propose(self._doing, proposal, groups, waits_long=waits_long)
        except Withdrawn:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise
        return self._answer(said)

    def of(self, nodes: Sequence[Node]) -> Joint:
        """See `Joint`: the ranks of the collectives' own group, or of the least grid of several."""
        lines = {node.op.of[0] for node in nodes}
        groups = [group for line, group in self.groups.items() if line in lines]
        if len(groups) == 1:
            return groups[0].joint
        return self if len(groups) == len(self.groups) else _grid_of(groups) or self

    def alone(self, node: Node) -> None:
        """See `Joint`. Not asked: where ranks do not know of each other, tapes are split."""
        raise NotImplementedError

    def replaying(self, program: Any) -> None:
        """See `Joint`."""
        digest, first = program.proposal
        try:
            answer = self._proposed_by_all(digest, True, first, waits_long=True)
        except Withdrawn as error:
            if error.late:
                raise PeerError(
                    f"The ranks of a grid do not all come to a captured step: {error.why}.",
                    ranks=error.late,
                    saw=f"{self._call(first)} is the first collective of it",
                ) from None
            raise self._replays_differ(first, error.why) from None
        if answer is JointAnswer.COMPILE and self.have_compiled(digest, False):
            return
        if answer is not JointAnswer.TOGETHER:
            raise self._replays_differ(first)

    def _interrupted(self, error: BaseException) -> None:
        super()._interrupted(error)
        if self.was_interrupted:
            for group in self.groups.values():
                group.joint.was_interrupted = True

    def _call(self, node: Node) -> str:
        return f"{super()._call(node)}, along {node.op.of[0]} of {self.ground.steps}"


class Refusals:
    """Tapes that not all ranks of their grid came to run, by how they begin: heuristics, and never needed."""

    def __init__(self) -> None:
        self._began: dict[Any, Any] = {}  # by its first collective, how the last tape began
        self._refused: dict[Any, list[int]] = {}  # how often in a row; how often it has come since

    def note(self, first: Any, beginning: Any) -> None:
        """A tape begins so. `first` is the signature of its first collective."""
        if len(self._began) > _MOST_BEGINNINGS:
            self._began.clear()
        self._began[first] = beginning

    def add(self, first: Any) -> None:
        """The tape that began so was refused."""
        if first in self._began:
            if len(self._refused) > _MOST_BEGINNINGS:
                self._refused.clear()
            self._refused.setdefault(self._began[first], [0, 0])[0] += 1

    def take_back(self, first: Any) -> None:
        """The tape that began so was run by all."""
        self._refused.pop(self._began.get(first), None)

    def leaves_out(self, beginning: Any) -> bool:
        """Whether a tape that begins so is not to be tried this time."""
        if beginning not in self._refused:
            return False
        seen = self._refused[beginning]
        seen[1] += 1
        return seen[1] % min(2 ** (seen[0] - 1), _MOST_LEFT_OUT) != 0


refusals = Refusals()


class _Known:
    """What this process knows of grids.

    rounds    by the ranks of a grid: as long as the process lives, for the store keeps what was decided.
    grids     by the names of groups; None where these make none; and how often it was looked for, where some
              groups of it were not known yet.
    made      how many groups of the same ranks this process has made.
    """

    def __init__(self) -> None:
        self.rounds: dict[tuple[int, ...], Rounds] = {}
        self.grids: dict[frozenset[str], Grid | None] = {}
        self.looked: Counter[frozenset[str]] = Counter()
        self.made: Counter[tuple[int, ...]] = Counter()


_known = _Known()
# Tapes that end where the group changes, for they are known to, or follow one that did.
_cut: WeakSet[Tape] = WeakSet()


def line_of(ranks: Sequence[int]) -> Line:
    """Where a group lies that is made now."""
    number = _known.made[tuple(ranks)]
    _known.made[tuple(ranks)] += 1
    return number, steps_of(ranks)


def tell_of(line: Line, ranks: Sequence[int]) -> None:
    """Have all ranks of the run know of a group. Its first rank does it, before any takes it for made."""
    if line[1] and joined_run() is not None:
        _store_of_groups().set(_key(line[0], ranks), "")


def forget_grids() -> None:
    """Groups have gone: names may come again."""
    _known.grids.clear()
    _known.looked.clear()


def joint_for(tape: Tape, group: Lining, signature: Any) -> Ranks | None:
    """Whose ranks run a tape once this collective is on it; None: the tape is to run before."""
    joint: Ranks | None = tape.joint
    if joint is None:
        group.joint.first = signature
        return group.joint
    if joint.groups.get(group.line) is group:
        return joint
    if tape in _cut:
        return None
    beginning = joint.first, tape.size, signature
    if refusals.leaves_out(beginning):
        _cut.add(tape)
        return None
    grid = _grid_of([*joint.groups.values(), group])
    if grid is not None:
        grid.first = joint.first
        if not isinstance(joint, Grid):
            refusals.note(joint.first, beginning)
    return grid


def follows(tape: Tape, before: Tape) -> None:
    """A tape has run before the collective of another group, with which this one begins."""
    if before in _cut:
        _cut.add(tape)


def _grid_of(groups: Sequence[Lining]) -> Grid | None:
    """The grid of these groups through this process's rank, if they have one."""
    names = frozenset(group.name for group in groups)
    if names not in _known.grids:
        own = groups[0].peers.ranks[groups[0].peers.rank]
        ground = ground_of(own, [group.peers.ranks for group in groups])
        if ground is not None and not _are_made(ground, groups, names):
            return None
        _known.grids[names] = (
            None if ground is None else Grid(ground, groups, _rounds_of(ground, own))
        )
    return _known.grids[names]


def _are_made(ground: Ground, groups: Sequence[Lining], names: frozenset[str]) -> bool:
    """Whether all rows and columns of a grid are groups; looked for the first, second, fourth time, ...

    Ranks make groups without waiting for those of others: the first time these may be about to be made.
    """
    _known.looked[names] += 1
    n = _known.looked[names]
    if n & (n - 1):
        return False
    keys = [
        _key(group.line[0], ranks)
        for group in groups
        for ranks in ground.parallel(group.peers.ranks)
    ]
    store, begun = _store_of_groups(), time.monotonic()
    while not store.check(keys):
        if n > 1 or time.monotonic() - begun > _IN_THE_MAKING_SECONDS:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _rounds_of(ground: Ground, own: int) -> Rounds:
    if ground.ranks not in _known.rounds:
        store = PrefixStore(f"torch_pjrt/grids/{_text(ground.ranks)}", store_of_run())
        rounds = Rounds(store, ground.ranks, ground.ranks.index(own), peer_timeout())
        _known.rounds[ground.ranks] = rounds
    return _known.rounds[ground.ranks]


def _store_of_groups() -> Any:
    return PrefixStore("torch_pjrt/groups", store_of_run())


def _key(number: int, ranks: Sequence[int]) -> str:
    return f"{number}/{_text(ranks)}"


def _text(ranks: Sequence[int]) -> str:
    return sha256(" ".join(map(str, ranks)).encode()).hexdigest()[:32]
