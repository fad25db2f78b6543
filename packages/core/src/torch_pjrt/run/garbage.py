"""When Python looks for garbage: behind launches, and not in the middle of a step.

Python (up to 3.13) looks at young objects once so many more were made than have gone, 700 or 2,000, and at
all objects of a process once those that have outlived two looks are a quarter as many as the rest. A step
makes thousands of objects, values, tensors and buffers, that are all alive until its program is launched, and
go then. Looked at in between they count as old; so a model of 48 layers had half a million objects looked at
in every eighth step, for a quarter of a second each.

While the device is in use there may be more young objects, `settings.gc_threshold`. Behind each launch Python
is asked to look all the same, by its own numbers, if there are as many more than behind launches before: that
is what steps leave behind, garbage or not, and what a step needs does not count. So few objects become old
that Python would hardly look at all of them any more, and a model that somebody has dropped may be in an old
cycle: behind a launch all are looked at from time to time, for a hundredth of the time.

Numbers that the user has chosen are left alone, and forked processes, in which nothing is launched, have
Python's.
"""

from __future__ import annotations

import gc
from time import perf_counter

from torch_pjrt.session import session
from torch_pjrt.settings import settings

Thresholds = tuple[int, int, int]

_PYTHONS_OWN = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
_MOST = (1 << 31) - 1
_NONE_YET = 1 << 62
# All objects are looked at for a hundredth of the time; for the first time after so many seconds.
_SHARE = 100
_FIRST = 10.0


class _Young:
    """How many young objects there may be.

    own, raised   Python's numbers, and those since the device has started; 0 where they are left alone.
    fewest        there were behind a launch since Python has looked last.
    due           when all objects are to be looked at.
    """

    __slots__ = ("due", "fewest", "own", "raised")

    def __init__(self) -> None:
        self.fewest = _NONE_YET
        self.own: Thresholds = (0, 0, 0)
        self.raised: Thresholds = (0, 0, 0)
        self.due = float("inf")

    def after_fork(self) -> None:
        """Nothing is launched in the child, which may be a loader's worker."""
        if self.raised == gc.get_threshold():
            gc.set_threshold(*self.own)


_young = session.own("how many young objects there may be", _Young())


def begin() -> None:
    """Raise Python's number. Once, when the device has started."""
    own = gc.get_threshold()
    most = min(settings.gc_threshold, _MOST)
    if own in _PYTHONS_OWN and most > own[0]:
        _young.own, _young.raised = own, (most, *own[1:])
        _young.due = perf_counter() + _FIRST
        gc.set_threshold(*_young.raised)


def after_launch() -> None:
    """Have Python look, if launches have left enough, or if it is time to look at all objects."""
    n = gc.get_count()[0]
    if n < _young.fewest:
        _young.fewest = n
    elif n > _young.fewest + _young.own[0]:
        _young.fewest = _NONE_YET
        if _is_ours():
            _look()
    if perf_counter() > _young.due and _is_ours():
        start = perf_counter()
        gc.collect()
        now = perf_counter()
        _young.due = now + _SHARE * (now - start)


def _is_ours() -> bool:
    """Whether nobody has chosen otherwise meanwhile."""
    return gc.get_threshold() == _young.raised and gc.isenabled()


def _look() -> None:
    """Have Python look by its own numbers."""
    try:
        gc.set_threshold(*_young.own)
        _Made()
        _call()
    finally:
        gc.set_threshold(*_young.raised)


class _Made:
    """Python looks for garbage when such an object is made, or, since 3.12, at the next call."""

    __slots__ = ("anything",)


def _call() -> None:
    pass
