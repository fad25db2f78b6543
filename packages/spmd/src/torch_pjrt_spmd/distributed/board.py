"""The status board of a run: what each process says of itself, as a line of JSON in the run's store.

It is told without anybody's waiting, and read by those who wait for a process, or by
`python -m torch_pjrt_spmd status`. A process that is not heard of any more is told by the number of its last
post: clocks of different hosts are not compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from torch_pjrt_spmd.distributed.joining import own_prefix

COMPUTING, COMPILING = "computing", "compiling"
WAITING, COLLECTIVE = "waiting", "collective"
ENDED, FAILED = "ended", "failed"

# A thread that looks several times a second, and has not for so long, was stopped with its process.
PAUSE_SECONDS = 5.0

_CURRENT = "torch_pjrt/board"


@dataclass(slots=True)
class Post:
    """What a process says of itself.

    beat      grows from post to post; `time`: of its own clock, in seconds since 1970.
    host_id   equal for processes that see each other's `pid`; began: when it began, to tell reused numbers.
    phase     computing, compiling, waiting (for other ranks, before a collective), collective (in one),
              ended, failed; since_s: for how long.
    doing     the collective, also one that is agreed on and that it is not in; ranks: who takes part.
    line      of the user's program.
    step      steps of optimizers; launches: of programs.
    step_s    time of a step, the median of the last ones; own_s: without waiting for others.
    device_bytes, host_bytes    memory; None where the device does not tell.
    error     the first that ended the process, or its last; because: the ranks that it was about.
    """

    rank: int
    host: str
    pid: int
    host_id: str = ""
    began: str = ""
    beat: int = 0
    time: float = 0.0
    phase: str = COMPUTING
    since_s: float = 0.0
    doing: str = ""
    line: str = ""
    ranks: list[int] = field(default_factory=list)
    step: int = 0
    launches: int = 0
    step_s: float | None = None
    own_s: float | None = None
    device_bytes: int | None = None
    host_bytes: int = 0
    error: str = ""
    because: list[int] = field(default_factory=list)

    def text(self) -> str:
        """As JSON, in one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str | bytes) -> Post:
        """From its text; what a later version says besides is left out."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: x for name, x in json.loads(text).items() if name in known})

    @property
    def name(self) -> str:
        return f"rank {self.rank} ({self.host}, process {self.pid})"


@dataclass(slots=True)
class Seen:
    """A process's last post, and when this process first saw it, by its own monotonic clock in seconds."""

    post: Post
    changed: float


class Board:
    """The board, by a connection of its own: nobody waits for a call of another thread.

    store  of the board alone; size: how many processes the run has.
    seen   the last posts by rank, as far as `look` was asked for them.
    """

    def __init__(self, store: Any, size: int) -> None:
        self.store = store
        self.size = size
        self.seen: dict[int, Seen] = {}

    @classmethod
    def open(cls, store: Any) -> Board | None:
        """The board of the run that uses this store; None where there is none."""
        if not store.check([_CURRENT]):
            return None
        current = json.loads(store.get(_CURRENT))
        return cls(PrefixStore(current["prefix"], store), current["size"])

    @classmethod
    def make(cls, store: Any, size: int) -> Board:
        """The board of this run, in a store that may have been another attempt's."""
        root, prefix = underlying(store), f"{own_prefix()}/board"
        root.set(_CURRENT, json.dumps({"size": size, "prefix": prefix}))
        return cls(PrefixStore(prefix, root.clone()), size)

    def forgive(self) -> None:
        """Take all posts for new: this process was stopped, and has not looked."""
        for one in list(self.seen.values()):
            one.changed = time.monotonic()

    def put(self, post: Post) -> None:
        """Say this. Raises `RuntimeError` where the store is gone."""
        self.store.set(str(post.rank), post.text())

    def look(self, ranks: Iterable[int]) -> None:
        """Bring `seen` up to date for these. Raises `RuntimeError` where the store is gone."""
        keys = [str(rank) for rank in ranks]
        there = keys if self.store.check(keys) else [k for k in keys if self.store.check([k])]
        for text in self.store.multi_get(there) if there else []:
            post = Post.of(text)
            before = self.seen.get(post.rank)
            if before is None or before.post.beat != post.beat or before.post.pid != post.pid:
                self.seen[post.rank] = Seen(post, time.monotonic())


def underlying(store: Any) -> Any:
    """The store itself, without the prefixes that PyTorch and its launchers put before keys."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
