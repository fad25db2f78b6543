"""Programs from an earlier process: looked for before anything is lowered, saved when it was compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_pjrt.client.client import client
from torch_pjrt.client.shardings import Sharding
from torch_pjrt.compile import executables
from torch_pjrt.compile.fingerprint import NotPortable, of_program, of_text
from torch_pjrt.compile.foreign_calls import targets_of, unknown
from torch_pjrt.compile.store import Store
from torch_pjrt.observe.counters import counters
from torch_pjrt.session import session
from torch_pjrt.settings import settings

if TYPE_CHECKING:
    from torch_pjrt.graph.boundary import Boundary
    from torch_pjrt.graph.graph import Graph
    from torch_pjrt.graph.tape import Tape

_stores: dict[Any, Store] = session.own("programs on disk, by folder", {})


def digest_of(
    recorded: Graph,
    tape: Tape,
    donated: Sequence[int],
    shardings: Sequence[Sharding | None] | None = None,
) -> str | None:
    """What this graph's program is saved under; None if it cannot be, or if nothing is to be saved.

    The tape's inputs are those that the program will be compiled for; `shardings` are those of its results,
    None where all is on one chip. Who wants to look at what is compiled
    gets no program from disk; one with lines in it is another program than one without.
    """
    if settings.cache_dir is None or settings.dump is not None:
        return None
    arrays: list[Any] = [value.array for value in tape.inputs]
    try:
        found = of_program(recorded, arrays, donated, len(tape.draws), client(), shardings)
        return found if tape.joint is None else of_text(f"{found} {tape.joint.name}")
    except NotPortable as why:
        counters.not_kept[str(why)] += 1
        return None


def load(digest: str, chips: Sequence[Any] = ()) -> tuple[Any, Boundary] | None:
    """The compiled program, ready to be launched, with its boundary; None if it is not on disk.

    `chips` are those that it runs on; none: the client's.
    """
    store = _store()
    with counters.timed("load_s"):
        content = store.load(digest)
        if content is None:
            return None
        found = executables.from_bytes(content, client(), chips)
        if found is None:
            store.drop(digest)
        else:
            counters.programs_loaded += 1
        return found


def save(
    digest: str,
    compiled: Any,
    boundary: Boundary,
    lowered: Any,
    n_operators: int,
    seconds: float,
) -> None:
    """Keep a program for the next process; `seconds` is what it took to lower and compile it."""
    with counters.timed("save_s"):
        calls = targets_of(lowered)
        if nobody_sets_up := unknown(calls, client()):
            for target in nobody_sets_up:
                counters.not_kept[f"unknown custom call `{target}`"] += 1
            return
        content = executables.to_bytes(compiled, boundary, calls)
        if content is None:
            counters.not_kept["device does not write programs out"] += 1
            return
        device = client().device.name
        about = {"device": device, "operators": n_operators, "seconds": round(seconds, 3)}
        _store().save(digest, content, **about)


def _store() -> Store:
    assert settings.cache_dir is not None
    key = (settings.cache_dir, settings.cache_bytes)
    if key not in _stores:
        _stores[key] = Store(*key)
    return _stores[key]
