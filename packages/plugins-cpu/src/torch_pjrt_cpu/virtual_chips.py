"""Virtual chips: XLA_FLAGS=--xla_force_host_platform_device_count=8 makes one processor eight, for tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_THREADS_OF_A_CHIP = 8


@contextmanager
def threads_for_virtual_chips() -> Iterator[None]:
    """While the block makes a client: threads enough for collectives between virtual chips.

    XLA's client has one pool of as many threads as there are cores, or as `NPROC` says, and a thread that
    waits in a collective is taken from it. Where several collectives of a program are under way at once, as
    in loops, fewer threads than waits end the process after 40 seconds.
    """
    found = _COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    n_chips = int(found[-1]) if found else 1
    if n_chips == 1 or "NPROC" in os.environ:
        yield
        return
    os.environ["NPROC"] = str(max(_THREADS_OF_A_CHIP * n_chips, os.cpu_count() or 1))
    try:
        yield
    finally:
        del os.environ["NPROC"]
