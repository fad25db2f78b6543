"""What is wrong with a process, from what it has posted: read by those who wait for it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch_pjrt_spmd.distributed import same_host
from torch_pjrt_spmd.distributed.board import (
    COLLECTIVE,
    COMPILING,
    COMPUTING,
    ENDED,
    FAILED,
    WAITING,
    Post,
    Seen,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A process that the others wait for in vain.

    rank   its number in the run.
    text   what is known of it, with its host and process.
    """

    rank: int
    text: str


def lost(seen: Mapping[int, Seen], ranks: Collection[int], limit: float) -> list[Finding]:
    """Those of the ranks that are gone, have failed, or were not heard of for `limit` seconds.

    Where one has failed because of others, these are named too, and come first.
    """
    return _lost(seen, ranks, limit, set())


def _lost(
    seen: Mapping[int, Seen], ranks: Collection[int], limit: float, asked: set[int]
) -> list[Finding]:
    found: list[Finding] = []
    for rank in ranks:
        one = seen.get(rank)
        if one is None or rank in asked:
            continue
        asked.add(rank)
        words = _end_of(one, limit)
        if words:
            causes = _lost(seen, one.post.because, limit, asked)
            found = [*causes, *found, Finding(rank, f"{one.post.name} {words}")]
    return found


def _end_of(one: Seen, limit: float) -> str:
    """In which way it is no more; "" if it lives, as far as one can see."""
    post, silent = one.post, time.monotonic() - one.changed
    if post.phase == FAILED:
        return f"has failed: {post.error}"
    if post.phase == ENDED:
        return f"has ended, at step {post.step}" + (f", after {post.error}" if post.error else "")
    if _is_here(post) and same_host.is_dead(post.pid, post.began):
        return f"is gone: killed, or crashed without an error of Python's. {where(post)}"
    if silent > limit:
        if _is_here(post) and same_host.is_stopped(post.pid):
            return f"is stopped (SIGSTOP, or a debugger), for {silent:.0f} s. {where(post)}"
        return f"was not heard of for {silent:.0f} s: stuck, or its host is gone. {where(post)}"
    return ""


def silent(seen: Mapping[int, Seen], ranks: Collection[int], seconds: float) -> list[Finding]:
    """Those of the ranks that were not heard of for some seconds: of another host, all that one can know."""
    now = time.monotonic()
    return [
        Finding(rank, f"{one.post.name} was not heard of for {now - one.changed:.0f} s.")
        for rank in ranks
        if (one := seen.get(rank)) is not None and now - one.changed > seconds
    ]


def is_excused(seen: Mapping[int, Seen], rank: int, asked: frozenset[int] = frozenset()) -> bool:
    """Whether it may be waited for beyond the limit: it compiles, or waits for one that does."""
    one = seen.get(rank)
    if one is None or rank in asked:
        return False
    if one.post.phase == COMPILING:
        return True
    if one.post.phase != WAITING:
        return False
    return any(is_excused(seen, other, asked | {rank}) for other in one.post.ranks)


def late(seen: Mapping[int, Seen], ranks: Sequence[int]) -> list[Finding]:
    """Those of the ranks that live, and whom the others wait for: what they do instead."""
    found: dict[int, Finding] = {}
    for rank in ranks:
        for one in _awaited(seen, rank, frozenset()):
            post = one.post
            stopped = _is_here(post) and same_host.is_stopped(post.pid)
            state = "is stopped (SIGSTOP, or a debugger)" if stopped else _what_it_does(post)
            found.setdefault(post.rank, Finding(post.rank, f"{post.name} {state}. {where(post)}"))
    return list(found.values())


def elsewhere(seen: Mapping[int, Seen], ranks: Collection[int], doing: str) -> list[Finding]:
    """Those of the ranks that have agreed on a collective, and do something else instead."""
    return [
        Finding(
            rank,
            f"{one.post.name} has agreed on it and {_what_it_does(one.post)}. {where(one.post)}",
        )
        for rank in ranks
        if (one := seen.get(rank)) and one.post.phase == COMPUTING and one.post.doing == doing
    ]


def _awaited(seen: Mapping[int, Seen], rank: int, asked: frozenset[int]) -> list[Seen]:
    """The process, or, where it waits for others as well, those of them that wait for nobody."""
    one = seen.get(rank)
    if one is None:
        return []
    if one.post.phase != WAITING or rank in asked:
        return [one]
    others = [r for r in one.post.ranks if r != rank]
    further = [o for r in others for o in _awaited(seen, r, asked | {rank})]
    return [o for o in further if o.post.phase != WAITING] or [one]


def _what_it_does(post: Post) -> str:
    doing = f" for {post.doing}" if post.phase in (WAITING, COLLECTIVE) else ""
    return f"is {post.phase}{doing}, since {post.since_s:.0f} s"


def where(post: Post) -> str:
    """The last that is known of where it was."""
    return f"It was at step {post.step}, at {post.line or 'no line of the program'}."


def _is_here(post: Post) -> bool:
    return bool(post.host_id) and post.host_id == same_host.host_id()
