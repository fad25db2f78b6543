"""How the ranks of a group come to run one program together (`torch_pjrt.extend.Joint`): they ask each other.

Before a tape with collectives runs, each says which program it would make of it, and which collective comes
first. Where all would run the same program, they do. Where only the collective is the same, they compare from
where on their tapes differ, run what is alike as one program, or that collective alone, and ask again about
what comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_pjrt.extend import Joint, JointAnswer
from torch_pjrt.plugin import Node
from torch_pjrt_spmd.distributed.errors import PeersDiffer
from torch_pjrt_spmd.distributed.joining import chip_of
from torch_pjrt_spmd.distributed.lines import AXIS, Line
from torch_pjrt_spmd.distributed.peers import ALL_READY, APART, SAME, Peers

# How many of the beginnings that ranks have compared are known.
_MOST_BEGINNINGS = 4096


class Ranks(Joint):
    """The ranks of a group.

    group   its name, for what they tell each other.
    together, apart   how many programs with collectives have run, and how many collectives alone.
    was_interrupted   while it asked the others: it does not know what they do.
    groups  whose collectives a tape with this may have, by where they lie (`grids.py`): one.
    first   the signature of the first collective on the tape that was last begun with it.
    """

    def __init__(self, group: str, peers: Peers) -> None:
        chips = [chip_of(rank) for rank in peers.ranks]
        super().__init__(f"ranks {peers.ranks} at {[chip.id for chip in chips]}", chips, AXIS)
        self._begin(group, peers)

    def _begin(self, group: str, peers: Peers) -> None:
        self._group, self._peers = group, peers
        self.groups: dict[Line, Any] = {}
        self.first: Any = None
        self.together = self.apart = 0
        self.was_interrupted = False
        self._doing = ""  # what was agreed on last
        self._proposed = ""  # what processes proposed that differed, last
        self._beginnings: dict[str, tuple[int, Sequence[int]]] = {}

    @property
    def ranks(self) -> tuple[int, ...]:
        """Their numbers in the run."""
        return self._peers.ranks

    def propose(self, digest: str, is_ready: bool, first: Node) -> JointAnswer:
        """See `Joint`. Raises `PeersDiffer`, or `PeerError` where one does not come."""
        self._doing = self._call(first)
        return self._answer(self._ask(self._doing, self._proposal(digest, is_ready)))

    def _proposal(self, digest: str, is_ready: bool) -> str:
        return f"{digest}{ALL_READY if is_ready else ''}"

    def _answer(self, said: str) -> JointAnswer:
        """What is to be done, where this was decided."""
        if said == SAME:
            self.together += 1
            return JointAnswer.TOGETHER
        if said.startswith(APART):
            self._proposed = said
            self.apart += 1
            return JointAnswer.APART
        return JointAnswer.COMPILE

    def beginning(
        self, texts: Callable[[], Sequence[str]], wanted: Callable[[int], Sequence[int]]
    ) -> tuple[int, Sequence[int]]:
        """See `Joint`. What they propose decides it: they tell each other more the first time only."""
        if self._proposed not in self._beginnings:
            if (
                len(self._beginnings) == _MOST_BEGINNINGS
            ):  # on all of them: they know of the same ones
                self._beginnings.clear()
            self._beginnings[self._proposed] = self._compared(texts(), wanted)
        return self._beginnings[self._proposed]

    def _compared(
        self, texts: Sequence[str], wanted: Callable[[int], Sequence[int]]
    ) -> tuple[int, Sequence[int]]:
        of_all = [said.split() for said in self._peers.exchange(" ".join(texts))]
        n = sum(1 for alike in zip(*of_all, strict=False) if len(set(alike)) == 1)
        if n == 0:
            return 0, ()
        said = self._peers.exchange(" ".join(map(str, wanted(n))))
        return n, sorted({int(number) for line in said for number in line.split()})

    def have_compiled(self, digest: str, has_failed: bool) -> bool:
        """See `Joint`."""
        state = "failed" if has_failed else f"compiled{ALL_READY}"
        have_all = self._ask(f"run program {digest} together", state) == SAME
        self.together += have_all
        return have_all

    def alone(self, node: Node) -> None:
        """See `Joint`."""
        self.apart += 1
        self._doing = self._call(node)
        self._ask(self._doing)

    def explained(self, error: Exception) -> Exception:
        """See `Joint`."""
        return self._peers.lost(self._doing, error)

    def replaying(self, program: Any) -> None:
        """See `Joint`."""
        digest, first = program.proposal
        answer = self.propose(digest, True, first)
        if answer is JointAnswer.COMPILE and self.have_compiled(digest, False):
            return
        if answer is not JointAnswer.TOGETHER:
            raise self._replays_differ(first)

    def _replays_differ(self, first: Node, why: str = "") -> PeersDiffer:
        return PeersDiffer(
            "The ranks of a group are about to run different programs, and here it is a captured step's.",
            saw=f"{self._call(first)} is the first collective of it" + (f"; {why}" if why else ""),
            expected="the same step on each rank, captured on all of them or on none",
        )

    def _ask(self, call: str, proposal: str = "") -> str:
        try:
            return self._peers.agree(call, proposal)
        except BaseException as error:
            self._interrupted(error)
            raise

    def _interrupted(self, error: BaseException) -> None:
        self.was_interrupted = not isinstance(error, Exception)

    def _call(self, node: Node) -> str:
        shapes = ", ".join(f"{s.dtype} {list(s.shape)}" for s in node.signature.specs)
        return f"{self._group}: {node.op} of {shapes or 'nothing'}"
