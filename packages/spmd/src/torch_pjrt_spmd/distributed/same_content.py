"""Whether processes that share a mesh put the same on it: a checksum of what each has uploaded.

Of what lies on the chips of several processes in the same place, each process puts its own copy there. Where
copies differ, a replica of a weight that was drawn with another seed say, chips would compute different
things from then on, and no process could see it. So the next launch compares checksums, together with the
programs. What each process has a part of its own of, as of batches, is its own.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch_pjrt_spmd.settings import config

Processes = tuple[int, ...]

# Of a larger part, so many bytes at its beginning and its end count.
_MOST = 32 << 20


@dataclass(slots=True)
class Uploads:
    """What a thread has put on the chips of some processes, all alike, since a launch was agreed on.

    checksum  of all of it, in order.
    each      of each part in words, with its own checksum.
    """

    checksum: int = 0
    each: list[str] = field(default_factory=list)


class _Threads(threading.local):
    def __init__(self) -> None:
        self.uploads: defaultdict[Processes, Uploads] = defaultdict(Uploads)


# A loader's thread uploads beside the program, in no order that others could know of.
_of_thread = _Threads()


def came(where: Any, shape: Sequence[int], index: Any, part: Any) -> None:
    """A part of an array comes to this process's chips: `Partitioner.came`."""
    if not config.compare_uploads or not part.nbytes:
        return
    processes = _with_all_alike(where, tuple(shape))
    if not processes:
        return
    uploads = _of_thread.uploads[processes]
    own = zlib.crc32(repr((str(part.dtype), tuple(shape), str(index))).encode())
    for some in _bytes_of(part):
        own = zlib.crc32(some, own)
    uploads.checksum = zlib.crc32(own.to_bytes(4, "big"), uploads.checksum)
    uploads.each.append(f"{part.dtype} {list(shape)} with checksum {own:08x}")


def of_processes(processes: Processes) -> Uploads:
    """What this thread has put there since a launch was agreed on."""
    return _of_thread.uploads[processes]


def are_same(processes: Processes) -> None:
    """A launch has been agreed on: all have put the same there."""
    _of_thread.uploads.pop(processes, None)


@lru_cache(maxsize=1024)
def _with_all_alike(where: Any, shape: tuple[int, ...]) -> Processes:
    """The processes of the chips, if each has all that any of them has; else none."""
    indices: defaultdict[int, set[str]] = defaultdict(set)
    for chip, index in where.devices_indices_map(shape).items():
        indices[chip.process_index].add(str(index))
    first, *others = indices.values()
    return tuple(sorted(indices)) if all(one == first for one in others) else ()


def _bytes_of(part: Any) -> list[Any]:
    import numpy as np

    flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return [flat] if flat.size <= 2 * _MOST else [flat[:_MOST], flat[-_MOST:]]
