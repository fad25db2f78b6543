"""Which runs have processes on this host: `python -m torch_pjrt_spmd status` finds them without being told.

Each process notes its store's address in a file of its number, which goes with it.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore


def note_run(store: Any) -> None:
    """Note the store of this process's run. Does nothing for stores without an address."""
    if not isinstance(store, TCPStore):
        return
    path, pid = _folder() / str(os.getpid()), os.getpid()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(f"{store.host}:{store.port}")
    atexit.register(lambda: path.unlink(missing_ok=True) if os.getpid() == pid else None)


def local_stores() -> list[str]:
    """`host:port` of the runs that have a living process here, each once."""
    found: set[str] = set()
    for path in _folder().glob("*"):
        if not path.name.isdigit():
            continue
        with suppress(OSError):
            os.kill(int(path.name), 0)
            found.add(path.read_text())
            continue
        path.unlink(missing_ok=True)
    return sorted(found)


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"torch_pjrt_runs_{os.getuid()}"
