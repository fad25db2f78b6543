"""Virtual chips: XLA_FLAGS=--xla_force_host_platform_device_count=8 makes one processor eight, for tests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_THREADS_OF_A_CHIP = 8
# Its scheduler orders a program so that much of it could run at once, and has all that is gathered somewhere
# whole from the start. Virtual chips share cores: less memory is what they are to show. XLA reads the flag
# when the process compiles for the first time, and takes it for no single program.
_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler"


@contextmanager
def threads_for_virtual_chips() -> Iterator[None]:
    """While the block makes a client: threads enough for collectives between virtual chips.

    XLA's client has one pool of as many threads as there are cores, or as `NPROC` says, and a thread that
    waits in a collective is taken from it. Where several collectives of a program are under way at once, as
    in loops, fewer threads than waits end the process after 40 seconds.
    """
    found = _COUNT.findall(os.environ.get("XLA_FLAGS", ""))
    n_chips = int(found[-1]) if found else 1
    if n_chips > 1 and _ORDER not in os.environ["XLA_FLAGS"]:
        os.environ["XLA_FLAGS"] += f" {_ORDER}=false"
    if n_chips == 1 or "NPROC" in os.environ:
        yield
        return
    os.environ["NPROC"] = str(max(_THREADS_OF_A_CHIP * n_chips, os.cpu_count() or 1))
    try:
        yield
    finally:
        del os.environ["NPROC"]
