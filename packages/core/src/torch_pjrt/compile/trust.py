"""Files that nobody but this user can have written, opened without waiting, whatever lies under their names.

A saved program is unpickled, which runs what is in it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

# A named pipe without a writer would make `open` wait; a link may lead anywhere.
_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):  # not each system has all
    _FLAGS |= getattr(os, _name, 0)
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def opened(path: Path) -> BinaryIO | None:
    """The file, open; None for what is no file, or what another user owns or can write to.

    Raises `OSError` where there is nothing, or nothing that can be opened.
    """
    if not stat.S_ISREG(path.lstat().st_mode):  # opening a device may do something
        return None
    descriptor = os.open(path, _FLAGS)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and objection(found) is None:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def objection_to_folder(folder: Path) -> str | None:
    """Why what is in the folder cannot be trusted, in words; None if it can, or if there is no folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return objection(found, _ROOT)


def objection(found: os.stat_result, *trusted: int) -> str | None:
    """Why another user may have made what `found` describes, `trusted` ones left aside."""
    if not hasattr(os, "geteuid"):  # such systems have no owners by number, and modes say nothing
        return None
    if found.st_uid not in (os.geteuid(), *trusted):
        return f"it belongs to user {found.st_uid}"
    if found.st_mode & _OTHERS_WRITE:
        return f"other users can write to it (mode {stat.S_IMODE(found.st_mode):o}; `chmod go-w`)"
    return None
