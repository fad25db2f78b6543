"""Where checkpoints lie: a folder of this machine's file system, or of one that fsspec knows.

A checkpoint called `step-12` is complete once something of this name is offered by `complete`, and is never
seen before:

    on disks    it is written as `step-12.ID.incomplete`, all of it is synced, and the folder is renamed
    elsewhere   it is written where it is to be, and its `checkpoint.json` comes last

Where another one is replaced on a disk that cannot exchange two names (a network's, mostly), that one is
`step-12.ID.replaced` for an instant, and `recover` gives it its name back if nothing has come of the new one.

What is called otherwise is left over from a process that was killed, and nobody's.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

INDEX = "checkpoint.json"
METADATA = ".metadata"  # of PyTorch's `torch.distributed.checkpoint`
INCOMPLETE, REMOVED, REPLACED = ".incomplete", ".removed", ".replaced"
_LEFT_OVER = re.compile(r"(.+)\.[0-9a-f]{8}(\.incomplete|\.removed|\.replaced)")
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_HERE = -100  # AT_FDCWD
_BLOCK = 1 << 24  # bytes that are written at once


def trace(what: str, path: str) -> None:
    """Told of what is about to happen. Tests end the process there."""


class Storage(Protocol):
    """What checkpoints need of a file system. Paths are those of the folder that has them, and below."""

    def place(self, name: str, save: str) -> str:
        """Where the files of a checkpoint that is being written go, in the save of this identity."""
        ...

    def whole(self, name: str) -> str:
        """Where the files of a checkpoint that is complete are."""
        ...

    def discard(self, place: str, but: str | None = None) -> None:
        """Remove what could not be written to its end, except for a file of this name and what it lies in."""
        ...

    def make(self, place: str) -> None:
        """Have it there; what an earlier, unfinished save has left is not of this one."""
        ...

    def create(self, path: str) -> Any:
        """A file to write to, in blocks, and then to `finish`."""
        ...

    def finish(self, file: Any) -> None:
        """Have all of it on the disk, and close it."""
        ...

    def publish(self, place: str, name: str) -> None:
        """Make it the checkpoint of this name, in one instant; another one of the name is replaced."""
        ...

    def complete(self) -> list[str]:
        """The names of what is complete."""
        ...

    def remove(self, name: str) -> None:
        """Remove a checkpoint: in one instant it is complete no more."""
        ...

    def recover(self) -> None:
        """Have what was being replaced as a process was killed be complete again."""
        ...

    def clean(self) -> None:
        """Recover, and remove what killed processes have left."""
        ...

    def read(self, path: str) -> bytes:
        """A small file. Raises `FileNotFoundError`."""
        ...

    def open(self, path: str) -> Bytes:
        """A large file. Raises `FileNotFoundError`."""
        ...

    def drop(self, path: str) -> None:
        """Remove a file, if it is there."""
        ...


class Bytes(Protocol):
    """A file's content, of which parts are read."""

    size: int

    def part(self, begin: int, n: int) -> memoryview:
        """Some bytes. Whoever has looked at them calls `done` with the same numbers."""
        ...

    def done(self, begin: int, n: int) -> None:
        """They need not be in memory any more."""
        ...


def storage_of(folder: str | os.PathLike[str]) -> Storage:
    """Of a path, or of a URL that fsspec knows: `s3://bucket/run`."""
    text = os.fspath(folder)
    return Elsewhere(text) if "://" in text else Disk(text)


class Disk:
    """A folder of a file system that this machine has mounted."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.abspath(folder)

    def place(self, name: str, save: str) -> str:
        return os.path.join(self.folder, f"{name}.{save}{INCOMPLETE}")

    def whole(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def discard(self, place: str, but: str | None = None) -> None:
        if but is None:
            self._remove_tree(place)
            return
        with suppress(FileNotFoundError), os.scandir(place) as found:
            for entry in found:
                if entry.name != but:
                    self.drop(entry.path)

    def make(self, place: str) -> None:
        trace("make", place)
        os.makedirs(place, exist_ok=True)

    def create(self, path: str) -> Any:
        trace("create", path)
        return _File(path)

    def finish(self, file: Any) -> None:
        trace("sync", file.path)
        file.finish()

    def publish(self, place: str, name: str) -> None:
        self._sync_folder(place)
        whole = os.path.join(self.folder, name)
        trace("rename", place)
        try:
            os.rename(place, whole)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            self._exchange(place, whole)
        self._sync_folder(self.folder)

    def _exchange(self, place: str, whole: str) -> None:
        """The other one of this name goes; at no time is there none."""
        removed = place.removesuffix(INCOMPLETE) + REMOVED
        if _exchanged(place, whole):
            trace("rename", place)
            os.rename(place, removed)
        else:  # a file system that cannot: there is none for an instant
            replaced = place.removesuffix(INCOMPLETE) + REPLACED
            trace("rename", whole)
            os.rename(whole, replaced)
            self._sync_folder(self.folder)
            trace("rename", place)
            os.rename(place, whole)
            self._sync_folder(self.folder)
            trace("rename", replaced)
            os.rename(replaced, removed)
        self._sync_folder(self.folder)
        self._remove_tree(removed)

    def complete(self) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            return [e.name for e in found if _is_complete(e)]
        return []

    def remove(self, name: str) -> None:
        whole = os.path.join(self.folder, name)
        removed = f"{whole}.{os.urandom(4).hex()}{REMOVED}"
        trace("rename", whole)
        os.rename(whole, removed)
        self._sync_folder(self.folder)
        self._remove_tree(removed)

    def recover(self) -> None:
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            for entry in found:
                left = _LEFT_OVER.fullmatch(entry.name)
                whole = os.path.join(self.folder, left[1]) if left else ""
                if left and left[2] == REPLACED and not os.path.lexists(whole):
                    trace("rename", entry.path)
                    with suppress(OSError):  # of a folder that is only read, or another one did it
                        os.rename(entry.path, whole)

    def clean(self) -> None:
        self.recover()
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            for entry in found:
                if _LEFT_OVER.fullmatch(entry.name):
                    self._remove_tree(entry.path)

    def read(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def open(self, path: str) -> Bytes:
        return _Mapped(path)

    def drop(self, path: str) -> None:
        trace("drop", path)
        with suppress(FileNotFoundError):
            os.unlink(path)

    def _remove_tree(self, path: str) -> None:
        trace("remove", path)
        shutil.rmtree(path, ignore_errors=True)

    def _sync_folder(self, path: str) -> None:
        trace("sync", path)
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class Elsewhere:
    """A folder of a file system of fsspec's, an object store say: renaming is no single instant there."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._system, self.folder = url_to_fs(url)

    def place(self, name: str, save: str) -> str:
        return f"{self.folder}/{name}"

    def whole(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def discard(self, place: str, but: str | None = None) -> None:
        if but is None:
            self._system.rm(place, recursive=True)
            return
        for path in self._system.ls(place, detail=False):
            if str(path).rstrip("/").rsplit("/", 1)[-1] != but:
                self.drop(path)

    def make(self, place: str) -> None:
        trace("make", place)
        self.drop(f"{place}/{INDEX}")
        self._system.makedirs(place, exist_ok=True)

    def create(self, path: str) -> Any:
        trace("create", path)
        return self._system.open(path, "wb")

    def finish(self, file: Any) -> None:
        trace("sync", str(file.path))
        file.close()

    def publish(self, place: str, name: str) -> None:
        """Nothing: the index was there last."""

    def complete(self) -> list[str]:
        self._system.invalidate_cache()
        if not self._system.exists(self.folder):
            return []
        found = self._system.glob(f"{self.folder}/*/{INDEX}")
        return [str(path).rsplit("/", 2)[1] for path in found]

    def remove(self, name: str) -> None:
        self.drop(f"{self.folder}/{name}/{INDEX}")
        trace("remove", name)
        self._system.rm(f"{self.folder}/{name}", recursive=True)

    def recover(self) -> None:
        """Nothing: what is being replaced is gone as the new one is written."""

    def clean(self) -> None:
        if not self._system.exists(self.folder):
            return
        complete = set(self.complete())
        for path in self._system.ls(self.folder, detail=False):
            name = str(path).rstrip("/").rsplit("/", 1)[-1]
            if re.fullmatch(r"step-\d+", name) and name not in complete:
                self._system.rm(path, recursive=True)

    def read(self, path: str) -> bytes:
        return self._system.cat_file(path)

    def open(self, path: str) -> Bytes:
        return _Fetched(self._system, path)

    def drop(self, path: str) -> None:
        trace("drop", path)
        with suppress(FileNotFoundError):
            self._system.rm_file(path)


class _File:
    """Unbuffered: what was written is the kernel's, whatever becomes of the process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write(self, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            trace("write", self.path)
            view = view[os.write(self._number, view[:_BLOCK]) :]

    def finish(self) -> None:
        os.fsync(self._number)
        os.close(self._number)


class _Mapped:
    """A file that is mapped: what is looked at is in memory, until `done`."""

    def __init__(self, path: str) -> None:
        number = os.open(path, os.O_RDONLY)
        try:
            self.size = os.fstat(number).st_size
            # Private, so that tensors on it count as ones that can be written to; nobody does.
            self._map = mmap.mmap(number, self.size, mmap.MAP_PRIVATE) if self.size else None
        finally:
            os.close(number)

    def part(self, begin: int, n: int) -> memoryview:
        return memoryview(self._map)[begin : begin + n] if self._map else memoryview(b"")

    def done(self, begin: int, n: int) -> None:
        if self._map is not None and n:
            start = begin - begin % mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, start, begin + n - start)


class _Fetched:
    """A file elsewhere: what is looked at is fetched."""

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        self.size = int(system.size(path))

    def part(self, begin: int, n: int) -> memoryview:
        return memoryview(bytearray(self._system.cat_file(self._path, begin, begin + n)))

    def done(self, begin: int, n: int) -> None:
        """Nothing is kept."""


def _is_complete(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder with an index, ours or PyTorch's, and no left over one."""
    if _LEFT_OVER.fullmatch(entry.name) or not entry.is_dir():
        return False
    return any(os.path.exists(os.path.join(entry.path, file)) for file in (INDEX, METADATA))


def _exchanged(one: str, other: str) -> bool:
    """Have two folders change names, in one instant; whether the file system can."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    trace("rename", one)
    return call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def now() -> float:
    """Seconds, for limits."""
    return time.monotonic()
