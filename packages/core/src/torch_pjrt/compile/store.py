"""The cache on disk: compiled programs that a later process loads, one file each.

    <folder>/<digest>.program     a line of JSON (what it is, the digest of the rest), then the program

Many processes may use one folder: a file appears whole, by renaming, or not at all. One that is cut off,
foreign or of another owner is not used; whatever goes wrong with the disk costs the cache, never the
program. When the folder grows past its bound, what was not used for longest goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SUFFIX = ".program"
_PARTIAL = ".partial"
_LONGEST_HEAD = 1 << 16
# A file that a process was writing when it died. No program takes so long to write.
_ABANDONED_S = 3600.0
# How far below its bound pruning leaves the folder, so that not every program prunes.
_ROOM = 0.9


@dataclass(frozen=True, slots=True)
class Entry:
    """One program on disk.

    head    what was said of it when it was saved.
    nbytes  of the file.
    used    when it was last written or loaded, in seconds since 1970.
    """

    path: Path
    head: dict[str, Any]
    nbytes: int
    used: float

    @property
    def digest(self) -> str:
        return self.path.name.removesuffix(_SUFFIX)


class Store:
    """A folder of programs, at most `bound` bytes of them."""

    def __init__(self, folder: Path, bound: int) -> None:
        self.folder = folder
        self.bound = bound
        self._warned = False
        self._written_since_look: int | None = None  # None: the folder was not looked at yet

    def load(self, digest: str) -> bytes | None:
        """The program saved under `digest`; None if there is none that can be trusted."""
        path = self._path(digest)
        try:
            with path.open("rb") as file:
                if not _is_ours(file.fileno()):
                    return None
                head = _read_head(file.readline(_LONGEST_HEAD))
                body = file.read()
        except OSError:
            return None
        if head is None or head.get("sha256") != hashlib.sha256(body).hexdigest():
            self.drop(digest)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return body

    def save(self, digest: str, body: bytes, **about: Any) -> bool:
        """Write a program, with what `about` says of it; False if the disk refuses, which warns once."""
        head = json.dumps({"sha256": hashlib.sha256(body).hexdigest(), **about}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._write(digest, head + b"\n" + body)
            self._bound_size(len(head) + 1 + len(body))
        except OSError as error:
            self._warn(error)
            return False
        return True

    def drop(self, digest: str) -> None:
        """Remove a program; none is no error."""
        with contextlib.suppress(OSError):
            self._path(digest).unlink()

    def entries(self) -> Iterator[Entry]:
        """All programs, the last used first."""
        found = []
        for path, stat in self._files(_SUFFIX):
            with contextlib.suppress(OSError), path.open("rb") as file:
                head = _read_head(file.readline(_LONGEST_HEAD))
                found.append(Entry(path, head or {}, stat.st_size, stat.st_mtime))
        yield from sorted(found, key=lambda e: -e.used)

    def prune(self, bound: int) -> tuple[int, int]:
        """Remove what was used longest ago until at most `bound` bytes are left: programs, bytes removed."""
        now = time.time()
        for path, stat in self._files(_PARTIAL):
            if now - stat.st_mtime > _ABANDONED_S:
                with contextlib.suppress(OSError):
                    path.unlink()
        files = sorted(self._files(_SUFFIX), key=lambda f: f[1].st_mtime)
        total = sum(stat.st_size for _, stat in files)
        n_files = n_bytes = 0
        for path, stat in files:
            if total - n_bytes <= bound:
                break
            with contextlib.suppress(OSError):  # another process was faster
                path.unlink()
            n_files, n_bytes = n_files + 1, n_bytes + stat.st_size
        return n_files, n_bytes

    def clear(self) -> tuple[int, int]:
        """Remove all programs: how many, of how many bytes."""
        return self.prune(0)

    def _path(self, digest: str) -> Path:
        return self.folder / (digest + _SUFFIX)

    def _files(self, suffix: str) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            with os.scandir(self.folder) as found:
                for item in found:
                    if item.name.endswith(suffix):
                        with contextlib.suppress(OSError):
                            yield Path(item.path), item.stat()
        except OSError:
            return

    def _write(self, digest: str, content: bytes) -> None:
        handle, name = tempfile.mkstemp(_PARTIAL, digest[:16], self.folder)
        try:
            with open(handle, "wb") as file:
                file.write(content)
            os.replace(name, self._path(digest))
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _bound_size(self, nbytes: int) -> None:
        """Look at the folder at first, and again whenever this process has written a tenth of the bound."""
        written = self._written_since_look
        if written is None or written + nbytes > self.bound * (1 - _ROOM):
            if sum(stat.st_size for _, stat in self._files(_SUFFIX)) > self.bound:
                self.prune(int(self.bound * _ROOM))
            self._written_since_look = 0
        else:
            self._written_since_look = written + nbytes

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"torch-pjrt cannot save compiled programs in {self.folder}: {error}. They are compiled "
                "again in the next process. TORCH_PJRT_CACHE_DIR names another folder, or none: ''",
                stacklevel=2,
            )


def _is_ours(descriptor: int) -> bool:
    """Whether the file belongs to this user: loading a program runs what is in it."""
    return not hasattr(os, "getuid") or os.fstat(descriptor).st_uid == os.getuid()


def _read_head(line: bytes) -> dict[str, Any] | None:
    try:
        head = json.loads(line)
    except ValueError:
        return None
    return head if isinstance(head, dict) else None
