"""Writing one checkpoint: the files of each process, then the index, then the name.

This runs in a process of its own (`writer.py`), which imports no PyTorch. What is to be written was laid out
by the process that trains (`layout.py`); its tensors lie in memory that both have.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch_pjrt_fsdp.checkpoint.storage import INDEX, METADATA, Storage, now

_BLOCK = 1 << 24  # bytes that are looked at and written at once


class Abandoned(Exception):
    """The process that trains is gone, or another one that had to write a part."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file has one after the other: bytes before a tensor's content, the content, and bytes after it.

    begin     where in the file it starts; zeros fill up what is before.
    content   where in the shared memory, and how many bytes.
    checked   where in `after` the content's checksum goes.
    """

    begin: int
    before: bytes
    content: tuple[int, int]
    after: bytes
    checked: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays the same from save to save while a state's tensors do.

    entries   of this process's file.
    index     by rank 0 alone: what `checkpoint.json` says of tensors, but for checksums. written: of each the
              rank that writes it, and which of its pieces it is.
    """

    entries: list[Entry]
    index: list[dict[str, Any]]
    written: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part of a checkpoint.

    name, save   the checkpoint's name, and eight hexadecimal digits that no other save has.
    rank, size   the number of this process, and how many there are.
    file         that it writes; None: nothing of this checkpoint is its own.
    objects      what follows the tensors, each with where it begins.
    about        by rank 0 alone: what else `checkpoint.json` says.
    index        by rank 0 alone: what it says of objects; written: as in `Plan`.
    metadata     by rank 0 alone: PyTorch's file of this name.
    keep         how many checkpoints of steps stay; None: all.
    timeout_s    how long to wait for other processes.
    fault        why this process has nothing to write, which the others are to know.
    """

    name: str
    save: str
    rank: int
    size: int
    file: str | None
    objects: list[tuple[int, bytes]]
    about: dict[str, Any]
    index: list[dict[str, Any]]
    written: list[tuple[int, int]]
    metadata: bytes
    keep: int | None
    timeout_s: float
    fault: str | None = None


def failed(name: str, save: str, rank: int, size: int, timeout_s: float, fault: str) -> Job:
    """The part of a process that has failed before it could write anything."""
    return Job(name, save, rank, size, None, [], {}, [], [], b"", None, timeout_s, fault)


def write(
    job: Job,
    plan: Plan,
    content: memoryview,
    storage: Storage,
    wanted: Callable[[], bool],
    wait: Callable[[float], None],
) -> None:
    """Write it. It is complete when this returns, of all processes.

    wanted   whether the process that trains is still there. wait: sleep so many seconds.

    Raises `Abandoned`, and whatever the file system does; nothing is offered then.
    """
    if job.fault is not None:
        raise Abandoned(job.fault)
    place = storage.place(job.name, job.save)
    storage.make(place)
    sums = _write_file(job, plan, content, storage, place, wanted) if job.file else []
    if job.size > 1:
        said = {"save": job.save, "sums": sums}
        _write_small(storage, f"{place}/{_said(job.rank)}", json.dumps(said).encode())
    if job.rank:
        _await(lambda: _is_published(storage, job), job, storage, 0, wanted, wait)
        return
    all_sums = {job.rank: sums}
    for rank in range(1, job.size):
        there = partial(_heard, storage, job, place, rank, all_sums)
        _await(there, job, storage, rank, wanted, wait)
    said_of = [
        {**entry, "crc32": all_sums[rank][i]}
        for entry, (rank, i) in zip(plan.index + job.index, plan.written + job.written, strict=True)
    ]
    metadata = {"bytes": len(job.metadata), "crc32": zlib.crc32(job.metadata)}
    index = {"save": job.save, **job.about, "entries": said_of, "metadata": metadata}
    _write_small(storage, f"{place}/{METADATA}", job.metadata)
    if not wanted():
        raise Abandoned("The process that trains is gone.")
    for rank in range(job.size if job.size > 1 else 0):
        storage.drop(f"{place}/{_said(rank)}")
        storage.drop(f"{place}/{_failed(rank)}")  # of an earlier save, where folders have one name
    _write_small(storage, f"{place}/{INDEX}", sealed(index))
    storage.publish(place, job.name)
    if job.keep is not None:
        prune(storage, job.keep, job.name)


def sealed(index: dict[str, Any]) -> bytes:
    """The index as a text that says its own checksum."""
    text = json.dumps(index, sort_keys=True, separators=(",", ":"))
    return b'{"crc32":%d,"index":%s}' % (zlib.crc32(text.encode()), text.encode())


def unsealed(text: bytes) -> dict[str, Any] | None:
    """What was sealed; None if it is not what was written."""
    with suppress(ValueError, KeyError, TypeError):
        read = json.loads(text)
        again = json.dumps(read["index"], sort_keys=True, separators=(",", ":"))
        if zlib.crc32(again.encode()) == read["crc32"]:
            return read["index"]
    return None


def step_of(name: str) -> int | None:
    """The number in `step-12`; None for another name."""
    number = name.removeprefix("step-")
    return int(number) if name.startswith("step-") and number.isdecimal() else None


def prune(storage: Storage, keep: int, written: str) -> None:
    """Remove checkpoints of steps but for those of the last `keep`, and for the one just written."""
    steps = sorted((s, n) for n in storage.complete() if (s := step_of(n)) is not None)
    for _, name in steps[:-keep]:
        if name != written:
            with suppress(FileNotFoundError):
                storage.remove(name)


def _write_file(
    job: Job,
    plan: Plan,
    content: memoryview,
    storage: Storage,
    place: str,
    wanted: Callable[[], bool],
) -> list[int]:
    """The checksums of what was written, tensors first."""
    file = storage.create(f"{place}/{job.file}")
    at = 0
    sums: list[int] = []
    for entry in plan.entries:
        file.write(b"\0" * (entry.begin - at) + entry.before)
        begin, n = entry.content
        crc = 0
        for i in range(begin, begin + n, _BLOCK):
            if not wanted():
                raise Abandoned("The process that trains is gone.")
            block = content[i : min(i + _BLOCK, begin + n)]
            crc = zlib.crc32(block, crc)
            file.write(block)
        after = bytearray(entry.after)
        for i in entry.checked:
            after[i : i + 4] = crc.to_bytes(4, "little")
        file.write(bytes(after))
        at = entry.begin + len(entry.before) + n + len(after)
        sums.append(crc)
    for begin, text in job.objects:
        file.write(b"\0" * (begin - at) + text)
        at = begin + len(text)
        sums.append(zlib.crc32(text))
    storage.finish(file)
    return sums


def _write_small(storage: Storage, path: str, text: bytes) -> None:
    file = storage.create(path)
    file.write(text)
    storage.finish(file)


def _said(rank: int) -> str:
    return f"written-{rank}.json"


def _failed(rank: int) -> str:
    return f"failed-{rank}.json"


def tell_others(job: Job, storage: Storage, fault: str) -> None:
    """Leave word that this process has failed, where those look that wait for it, and remove what it wrote.

    They wait for it if it is the first one, and the first one waits for all others, and fails then. The word
    comes first, and the folder stays: another process that writes in it goes on to where it waits, and finds
    the word there.
    """
    place = storage.place(job.name, job.save)
    said = json.dumps({"save": job.save, "fault": fault}).encode()
    try:
        _leave_word(job, storage, place, said)
    except Exception:  # a disk that is full has room once it is removed
        _remove(job, storage, place)
        _leave_word(job, storage, place, said)
    else:
        _remove(job, storage, place)


def _leave_word(job: Job, storage: Storage, place: str, said: bytes) -> None:
    if job.size > 1:
        storage.make(place)
        _write_small(storage, f"{place}/{_failed(job.rank)}", said)


def _remove(job: Job, storage: Storage, place: str) -> None:
    if job.rank == 0:
        storage.discard(place, but=_failed(0) if job.size > 1 else None)
    elif job.file is not None:
        storage.drop(f"{place}/{job.file}")


def _fault_of(storage: Storage, job: Job, rank: int) -> str | None:
    with suppress(FileNotFoundError, ValueError):
        said = json.loads(storage.read(f"{storage.place(job.name, job.save)}/{_failed(rank)}"))
        if said["save"] == job.save:
            return said["fault"]
    return None


def _heard(storage: Storage, job: Job, place: str, rank: int, sums: dict[int, list[int]]) -> bool:
    with suppress(FileNotFoundError, ValueError):
        said = json.loads(storage.read(f"{place}/{_said(rank)}"))
        if said["save"] == job.save:
            sums[rank] = said["sums"]
            return True
    return False


def _is_published(storage: Storage, job: Job) -> bool:
    with suppress(FileNotFoundError):
        index = unsealed(storage.read(f"{storage.whole(job.name)}/{INDEX}"))
        return index is not None and index["save"] == job.save
    return False


def _await(
    there: Callable[[], bool],
    job: Job,
    storage: Storage,
    rank: int,
    wanted: Callable[[], bool],
    wait: Callable[[float], None],
) -> None:
    """Until something is there that a process of this rank makes. Raises `Abandoned`."""
    until = now() + job.timeout_s
    pause = 0.002
    while not there():
        if not wanted():
            raise Abandoned("The process that trains is gone.")
        if (fault := _fault_of(storage, job, rank)) is not None:
            raise Abandoned(f"Process {rank} has failed: {fault}")
        if now() > until:
            raise Abandoned(
                f"Another process has not written its part of {job.name} in {job.timeout_s:g} s."
            )
        wait(pause)
        pause = min(2 * pause, 0.2)
