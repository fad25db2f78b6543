"""Which ranks are slow: their own time of a step, without what they wait for others, beside the others'.

In a run whose ranks meet in each step, all take as long as the slowest. So what is compared is the time in
which a rank does not wait.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from torch_pjrt_spmd.distributed.board import Post
from torch_pjrt_spmd.distributed.health import health


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that is slow.

    rank, host   which one, and where it runs.
    own_s        its time of a step without waiting, in seconds, the median of the last 20.
    usual_s      the median over ranks.
    line         of the user's program at which it was seen last.
    """

    rank: int
    host: str
    own_s: float
    usual_s: float
    line: str

    def __str__(self) -> str:
        return (
            f"rank {self.rank} ({self.host}) takes {self.own_s:.3f} s of its own for a step, "
            f"{self.own_s / self.usual_s:.1f} times the usual {self.usual_s:.3f} s; seen at {self.line}"
        )


def slow(posts: Iterable[Post], factor: float = 1.5) -> list[Straggler]:
    """Those whose own time is over `factor` times the median of all, the slowest first.

    With two ranks the faster one is the usual: a median of two would hide every factor under 3.
    """
    timed = [p for p in posts if p.own_s is not None]
    if len(timed) < 2:
        return []
    usual = statistics.median_low(p.own_s or 0.0 for p in timed)
    found = [
        Straggler(p.rank, p.host, p.own_s, usual, p.line)
        for p in timed
        if p.own_s is not None and p.own_s > factor * max(usual, 1e-9)
    ]
    return sorted(found, key=lambda s: -s.own_s)


def stragglers(factor: float = 1.5) -> list[Straggler]:
    """The slow ranks of this process's run, by what they last posted. Any rank may ask; nobody waits.

    factor   how many times the median over ranks is slow.

    Steps are those of optimizers. Empty for a process alone, and before each rank has made two steps. Raises
    `RuntimeError` where the run's store is gone.
    """
    own = health()
    if own is None:
        return []
    return slow(own.posts(), factor)
