"""Phases: what we do in a sync or a transfer, as named ranges in the timelines of profilers that are active.

A phase is the name of a counter of seconds (`sync_s`): `torch.profiler` shows it as `pjrt::sync`, and so
does a trace of `torch_pjrt.profile()`. Without a profiler it costs a look at two attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch.autograd import profiler

# Given a name, a range in JAX's trace; `diagnostics/trace.py` puts one here while it traces.
range_of: Callable[[str], AbstractContextManager[Any]] | None = None


def is_watched() -> bool:
    """Whether some profiler is active."""
    return range_of is not None or profiler._is_profiler_enabled


@contextmanager
def phase(counter: str) -> Iterator[None]:
    """A range around the block, in the timeline of each profiler that is active."""
    name = f"pjrt::{counter.removesuffix('_s')}"
    with ExitStack() as ranges:
        if profiler._is_profiler_enabled:
            ranges.enter_context(profiler.record_function(name))
        if range_of is not None:
            ranges.enter_context(range_of(name))
        yield
