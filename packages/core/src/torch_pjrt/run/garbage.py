"""When Python looks for garbage: behind launches, and not in the middle of a step.

Python looks at young objects once 700 (2,000 in some versions) more were made than have gone, and at all
objects of a process once those that have outlived two looks are a quarter as many as the rest. A step makes
thousands of objects, values, tensors and buffers, that are all alive until its program is launched, and go
then. Looked at in between they count as old; so a model of 48 layers had half a million objects looked at in
every eighth step, for a quarter of a second each.

While the device is in use there may be more young objects, `settings.gc_threshold`. Behind each launch Python
is asked to look all the same, by its own numbers, if there are as many more than behind launches before: that
is what steps leave behind, garbage or not, and what a step needs does not count. Numbers that the user has
chosen are left alone, and forked processes, in which nothing is launched, have Python's.
"""

from __future__ import annotations

import gc

from torch_pjrt.session import session
from torch_pjrt.settings import settings

Thresholds = tuple[int, int, int]

_PYTHONS_OWN = (700, 2000)
_NONE_YET = 1 << 62


class _Young:
    """How many young objects there may be.

    own, raised   Python's numbers, and those since the device has started; 0 where they are left alone.
    fewest        there were behind a launch since Python has looked last.
    """

    __slots__ = ("fewest", "own", "raised")

    def __init__(self) -> None:
        self.fewest = _NONE_YET
        self.own: Thresholds = (0, 0, 0)
        self.raised: Thresholds = (0, 0, 0)

    def after_fork(self) -> None:
        """Nothing is launched in the child, which may be a loader's worker."""
        if self.raised == gc.get_threshold():
            gc.set_threshold(*self.own)


_young = session.own("how many young objects there may be", _Young())


def begin() -> None:
    """Raise Python's number. Once, when the device has started."""
    own = gc.get_threshold()
    if own[0] in _PYTHONS_OWN and settings.gc_threshold > own[0]:
        _young.own, _young.raised = own, (settings.gc_threshold, *own[1:])
        gc.set_threshold(*_young.raised)


def after_launch() -> None:
    """Have Python look, if launches have left enough."""
    n = gc.get_count()[0]
    if n < _young.fewest:
        _young.fewest = n
    elif n > _young.fewest + _young.own[0]:
        _young.fewest = _NONE_YET
        if gc.get_threshold() == _young.raised and gc.isenabled():
            _look()


def _look() -> None:
    """Have Python look by its own numbers."""
    gc.set_threshold(*_young.own)
    try:
        _Made()
        _call()
    finally:
        gc.set_threshold(*_young.raised)


class _Made:
    """Python looks for garbage when such an object is made, or, since 3.12, at the next call."""

    __slots__ = ("anything",)


def _call() -> None:
    pass
