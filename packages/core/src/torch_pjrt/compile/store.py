"""The cache on disk: compiled programs that a later process loads, one file each.

    <folder>/<digest>.program     a line of JSON (its digest, size and hash), then the program

Many processes may use one folder: a file appears whole, by renaming, or not at all. One that is cut off,
under another's name, foreign, or that other users may have written is not used; whatever goes wrong with the
disk costs the cache, never the program. When the folder grows past its bound, what was not used for longest
goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch_pjrt.compile import trust

_SUFFIX = ".program"
_PARTIAL = ".partial"
_LONGEST_HEAD = 1 << 12
# Nobody has written to it for so long: its process died.
_ABANDONED_S = 600.0
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
        if not self._is_trusted():
            return None
        path = self._path(digest)
        try:
            file = trust.opened(path)
            if file is None:
                return None
            with file:
                body = self._body(file, digest)
        except OSError:
            return None
        if body is None:
            self.drop(digest)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return body

    def save(self, digest: str, body: bytes, **about: Any) -> bool:
        """Write a program, with what `about` says of it; False if the disk refuses, which warns once."""
        proof = {"digest": digest, "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        head = json.dumps({**proof, **about}).encode()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_trusted():
                return False
            self._write(digest, head + b"\n" + body)
            self._bound_size(len(head) + 1 + len(body))
        except OSError as error:
            self._warn(f"cannot save compiled programs in {self.folder}: {error}")
            return False
        return True

    def drop(self, digest: str) -> None:
        """Remove a program; none is no error."""
        with contextlib.suppress(OSError):
            self._path(digest).unlink()

    def entries(self) -> Iterator[Entry]:
        """All programs, the last used first."""
        found = []
        for path, about in self._files(_SUFFIX):
            head = None
            with contextlib.suppress(OSError):
                if (file := trust.opened(path)) is not None:
                    with file:
                        head = _read_head(file.readline(_LONGEST_HEAD))
            found.append(Entry(path, head or {}, about.st_size, about.st_mtime))
        yield from sorted(found, key=lambda e: -e.used)

    def prune(self, bound: int) -> tuple[int, int]:
        """Remove what was used longest ago until at most `bound` bytes are left: programs, bytes removed."""
        now = time.time()
        total = sum(about.st_size for _, about in self._files(_PARTIAL, _SUFFIX))
        n_files = n_bytes = 0
        for path, about in self._files(_PARTIAL):
            if now - about.st_mtime > _ABANDONED_S and _removed(path):
                total -= about.st_size
        for path, about in sorted(self._files(_SUFFIX), key=lambda f: f[1].st_mtime):
            if total <= bound:
                break
            if _removed(path):
                n_files, n_bytes = n_files + 1, n_bytes + about.st_size
            total -= about.st_size
        return n_files, n_bytes

    def clear(self) -> tuple[int, int]:
        """Remove all programs: how many, of how many bytes."""
        return self.prune(-1)  # files without content, too

    def _path(self, digest: str) -> Path:
        return self.folder / (digest + _SUFFIX)

    def _body(self, file: BinaryIO, digest: str) -> bytes | None:
        """What comes after the head; None unless it is the program that was saved under this digest."""
        line = file.readline(_LONGEST_HEAD)
        head = _read_head(line)
        size = os.fstat(file.fileno()).st_size - len(line)
        if (
            head is None
            or size > self.bound
            or (head.get("digest"), head.get("bytes")) != (digest, size)
        ):
            return None
        body = file.read(size)
        return body if head.get("sha256") == hashlib.sha256(body).hexdigest() else None

    def _files(self, *suffixes: str) -> Iterator[tuple[Path, os.stat_result]]:
        """All that has such a name and can be removed as a file is."""
        try:
            with os.scandir(self.folder) as found:
                for item in found:
                    if item.name.endswith(suffixes):
                        with contextlib.suppress(OSError):
                            about = item.stat(follow_symlinks=False)
                            if not stat.S_ISDIR(about.st_mode):
                                yield Path(item.path), about
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
            if sum(about.st_size for _, about in self._files(_PARTIAL, _SUFFIX)) > self.bound:
                self.prune(int(self.bound * _ROOM))
            self._written_since_look = 0
        else:
            self._written_since_look = written + nbytes

    def _is_trusted(self) -> bool:
        objection = trust.objection_to_folder(self.folder)
        if objection is not None:
            self._warn(f"does not use compiled programs in {self.folder}: {objection}")
        return objection is None

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"torch-pjrt {what}. They are compiled again in the next process. "
                "TORCH_PJRT_CACHE_DIR names another folder, or none: ''",
                stacklevel=2,
            )


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:  # another process was faster, or it is not ours
        return False
    return True


def _read_head(line: bytes) -> dict[str, Any] | None:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) else None
